//! Authentication as `bk_server.conf` configures it: BookKeeper's keys, and `jaasFile`, `usersFile` and `requireReaderRole`.
//!
//! The files are loaded when the bookie starts. Nothing is read here but the settings, and the names of a JAAS file's sections where nothing
//! says what it is for.

use crate::bookie_security;
use crate::sources::environment::OPTIONS;
use crate::sources::host::Host;
use crate::sources::values::{Place, Values};
use crate::table::Draft;
use crate::table::flags::BookieArgs;
use crate::table::protection::{CERTIFICATES, SASL};
use bindery_metadata::SaslLogin;
use bindery_server::auth::{AuthConfig, JaasConfig, Provider};

const CLASS: &str = "bookieAuthProviderFactoryClass";
const JAAS: &str = "jaasFile";

/// The proof that clients must give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Password,
    Certificate,
}

/// What the keys of authentication say together; `None` when everybody is served.
pub(super) fn apply(file: &mut Values, draft: &Draft, host: &dyn Host) -> Option<AuthConfig> {
    let keys = &draft.auth;
    startup_users(file, keys.startup_users.as_deref(), host);
    let class = keys.class.as_deref();
    let users = keys.users.clone();
    let roles = keys.roles.as_deref().map(list);
    let requires_reader = keys.requires_reader == Some(true);
    let asked = match class {
        None if users.is_some() => Asked::Password,
        None => Asked::Nothing,
        Some(class) if is_open(class) => Asked::Nothing,
        Some(SASL) => Asked::Password,
        Some(CERTIFICATES) => Asked::Certificate,
        Some(other) => {
            file.fault(CLASS, format!("{CLASS}={other} is not known here: give {SASL} or {CERTIFICATES}"));
            return None;
        }
    };
    if asked != Asked::Password && users.is_some() {
        let text = format!("usersFile without names and passwords: remove it, or give {CLASS}={SASL}");
        file.fault("usersFile", text);
    }
    if asked != Asked::Certificate && roles.is_some() {
        let text = format!(
            "authorizedRoles are those of certificates, which nobody compares without {CLASS}={CERTIFICATES}: give that, or \
             remove the line"
        );
        file.fault("authorizedRoles", text);
    }
    let provider = match asked {
        Asked::Nothing => {
            if requires_reader {
                let text = "requireReaderRole=true where everybody is served: nobody has a role; give users or certificates, too";
                file.fault("requireReaderRole", text);
            }
            return None;
        }
        Asked::Password => {
            // Without BookKeeper's class a JAAS file may be there for ZooKeeper alone.
            let jaas = class.and_then(|_| jaas(draft));
            if jaas.is_none() && users.is_none() {
                let text = format!(
                    "{CLASS}={SASL}: there are no users; give jaasFile=FILE (--jaas-file), which Java calls \
                     -Djava.security.auth.login.config, or usersFile=FILE (--users-file)"
                );
                file.fault(CLASS, text);
            }
            Provider::Sasl { jaas, users }
        }
        Asked::Certificate => {
            let roles = roles.unwrap_or_default();
            if roles.is_empty() {
                let text = format!(
                    "{CLASS}={CERTIFICATES}: authorizedRoles is missing, so that nobody could connect"
                );
                file.fault(CLASS, text);
            }
            if draft.config.tls.as_ref().is_none_or(|tls| tls.client_authorities.is_none()) {
                let text = format!(
                    "{CLASS}={CERTIFICATES}: clients are asked for no certificate, so that nobody could connect; give \
                     tlsClientAuthentication=true, and what TLS needs"
                );
                file.fault(CLASS, text);
            }
            Provider::Certificates { roles }
        }
    };
    Some(AuthConfig { provider, requires_reader, refresh: AuthConfig::REFRESH_DEFAULT })
}

/// True for the two ways in which BookKeeper's files say that everybody is served.
fn is_open(class: &str) -> bool {
    class == "null" || class.ends_with("AuthenticationDisabledAuthProviderFactory")
}

/// Finds a JAAS file with users who need not log in, although its operator may expect that they have to. A file
/// that a setting or flag of ours gives is a fault then, one among the options of Java a warning. `is_used_otherwise`: its user logs in
/// somewhere.
///
/// To be called after everything that uses the file has its settings. Reads the names of the file's sections.
pub(super) fn check_jaas(args: &BookieArgs, file: &mut Values, draft: &Draft, is_used_otherwise: bool) {
    let Some(path) = &draft.jaas_file else { return };
    let auth = draft.config.auth.as_ref();
    let class = draft.auth.class.as_deref();
    if auth.is_some_and(|auth| auth.jaas().is_some()) || class.is_some_and(is_open) {
        return;
    }
    let is_known = class.is_none_or(|class| [SASL, CERTIFICATES].contains(&class));
    if !is_known || is_used_otherwise {
        // The first is a fault already.
        return;
    }
    let shown = path.display();
    let users = draft.auth.section.as_deref().unwrap_or(JaasConfig::SECTION_DEFAULT);
    let (section, is_needed) = match &draft.config.metadata_security.sasl {
        Some(SaslLogin::Jaas { section, is_needed, .. }) => (Some(section.as_str()), *is_needed),
        _ => (None, false),
    };
    if is_needed {
        return;
    }
    let why = match bookie_security::sections_of(path) {
        Err(error) => format!("it cannot be used: {error}"),
        Ok(names) if names.iter().any(|name| name == users) => {
            format!("the users in its section {users} are not asked for, and may not log in")
        }
        Ok(names) if section.is_some_and(|section| names.iter().any(|name| name == section)) => return,
        Ok(_) => "nothing uses it".to_owned(),
    };
    let text = format!(
        "jaasFile={shown}: {why}; give {CLASS}={SASL} to have clients log in as its users, {CLASS}=null if it is not for that, or \
         zkSaslEnable=true if it is for the login to ZooKeeper; or remove it"
    );
    match is_of_java(args, file) {
        true => file.warn(JAAS, text),
        false => file.fault(JAAS, text),
    }
}

/// True when the file is the one among the options of Java.
fn is_of_java(args: &BookieArgs, file: &Values) -> bool {
    let place = file.given().get(JAAS).map(|given| &given.place);
    args.jaas_file.is_none()
        && matches!(place, Some(Place::Variable(name)) if OPTIONS.contains(&name.as_str()))
}

/// Users of Java's file.
fn jaas(draft: &Draft) -> Option<JaasConfig> {
    let keys = &draft.auth;
    let or_default = |given: &Option<String>, default: &str| given.as_deref().unwrap_or(default).to_owned();
    Some(JaasConfig {
        file: draft.jaas_file.clone()?,
        section: or_default(&keys.section, JaasConfig::SECTION_DEFAULT),
        allowed_ids: or_default(&keys.allowed_ids, JaasConfig::ALLOWED_IDS_DEFAULT),
    })
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Refuses to start for a user who is not among those that may (`BookieServer.validateUser`).
fn startup_users(file: &mut Values, permitted: Option<&str>, host: &dyn Host) {
    let key = "permittedStartupUsers";
    let Some(text) = permitted else { return };
    match host.user() {
        Some(user) if list(text).contains(&user) => {}
        user => {
            let user = user.map_or_else(|| "a user without a name".to_owned(), |user| user.to_string());
            file.fault(
                key,
                format!("{key}={text}: this is {user}; start the bookie as one of those, or change the line"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::metadata_security;
    use crate::sources::environment::Variable;
    use crate::sources::host::tests::Fake;
    use crate::sources::values::Finding;
    use crate::table;
    use bindery_server::tls::TlsConfig;
    use std::path::{Path, PathBuf};

    fn tls(has_clients: bool) -> TlsConfig {
        TlsConfig {
            client_authorities: has_clients.then(|| "/a".into()),
            refresh: None,
            is_required: has_clients,
            ..TlsConfig::new("/c", "/k")
        }
    }

    fn applied(args: &BookieArgs, text: &str, tls: Option<&TlsConfig>) -> (Option<AuthConfig>, Vec<String>) {
        let mut file = Values::of(Some(text));
        let mut draft = table::read(args, &mut file, |_| true);
        draft.config.tls = tls.cloned();
        let auth = apply(&mut file, &draft, &Fake::default());
        let faults = file.faults.into_iter().map(|fault: Finding| fault.text).collect();
        assert!(file.warnings.is_empty(), "{:?}", file.warnings);
        (auth, faults)
    }

    fn of(text: &str) -> (Option<AuthConfig>, Vec<String>) {
        applied(&BookieArgs::default(), text, None)
    }

    #[test]
    fn the_keys_of_sasl_mean_what_they_mean_in_bookkeeper() {
        let class = format!("{CLASS}={SASL}\n");
        let jaas = |file: &str, section: &str, allowed_ids: &str| JaasConfig {
            file: file.into(),
            section: section.to_owned(),
            allowed_ids: allowed_ids.to_owned(),
        };
        let expect = |jaas: Option<JaasConfig>, users: Option<&str>| {
            let provider = Provider::Sasl { jaas, users: users.map(PathBuf::from) };
            (
                Some(AuthConfig { provider, requires_reader: false, refresh: AuthConfig::REFRESH_DEFAULT }),
                Vec::new(),
            )
        };
        let file = jaas("/j", "Bookie", ".*bookkeeper.*");
        assert_eq!(of(&format!("{class}jaasFile=/j\n")), expect(Some(file.clone()), None));
        let named = format!(
            "{class}jaasFile=/j\nsaslJaasBookieSectionName=B\nsaslJaasClientAllowedIds=.*\nusersFile=/u\n"
        );
        assert_eq!(of(&named), expect(Some(jaas("/j", "B", ".*")), Some("/u")));
        let args = BookieArgs {
            jaas_file: Some("/f".into()),
            users_file: Some("/v".into()),
            ..BookieArgs::default()
        };
        let flags = applied(&args, &format!("{class}jaasFile=/j\nusersFile=/u\n"), None);
        assert_eq!(flags, expect(Some(jaas("/f", "Bookie", ".*bookkeeper.*")), Some("/v")));
        // A file of users switches it on; a JAAS file alone may be there for something else.
        assert_eq!(of("usersFile=/u\njaasFile=/j\n"), expect(None, Some("/u")));
        assert_eq!(of("jaasFile=/j\nsaslJaasBookieSectionName=B\n"), (None, Vec::new()));
        let strict = of("usersFile=/u\nrequireReaderRole=true\n").0.unwrap();
        assert!(strict.requires_reader);
    }

    #[test]
    fn certificates_need_roles_and_to_be_asked_for() {
        let class = format!("{CLASS}={CERTIFICATES}\n");
        let text = format!("{class}authorizedRoles=a, b\n");
        let (auth, faults) = applied(&BookieArgs::default(), &text, Some(&tls(true)));
        assert!(faults.is_empty(), "{faults:?}");
        let roles = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(auth.unwrap().provider, Provider::Certificates { roles });
        for (text, tls) in [(&*text, None), (&text, Some(&tls(false)))] {
            let faults = applied(&BookieArgs::default(), text, tls).1;
            assert!(faults.len() == 1 && faults[0].contains("tlsClientAuthentication=true"), "{faults:?}");
        }
        let faults = of(&class).1;
        assert!(faults.len() == 2 && faults[0].contains("authorizedRoles is missing"), "{faults:?}");
    }

    #[test]
    fn nobody_believes_a_bookie_protected_that_serves_everybody() {
        let disabled =
            "org.apache.bookkeeper.auth.AuthProviderFactoryFactory$AuthenticationDisabledAuthProviderFactory";
        for open in
            [String::new(), format!("{CLASS}=\n"), format!("{CLASS}=null\n"), format!("{CLASS}={disabled}\n")]
        {
            assert_eq!(of(&open), (None, Vec::new()), "{open}");
        }
        for (text, why) in [
            (format!("{CLASS}=my.Provider\n"), "is not known here"),
            (format!("{CLASS}={SASL}\n"), "there are no users"),
            (format!("{CLASS}={disabled}\nusersFile=/u\n"), "usersFile without"),
            (format!("{CLASS}=null\nusersFile=/u\n"), "usersFile without"),
            ("authorizedRoles=a\n".to_owned(), "authorizedRoles are those of certificates"),
            ("usersFile=/u\nauthorizedRoles=a\n".to_owned(), "authorizedRoles are those of certificates"),
            ("requireReaderRole=true\n".to_owned(), "nobody has a role"),
        ] {
            let faults = of(&text).1;
            assert!(faults.len() == 1 && faults[0].contains(why), "{text}: {faults:?}");
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
    fn a_jaas_file_that_nothing_uses_is_no_protection() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (users, client, both) =
            ("Bookie { a.B required user_hd=\"tiger\"; };", "Client { a.B required; };", "both");
        std::fs::write(path("users"), users).unwrap();
        std::fs::write(path("client"), client).unwrap();
        std::fs::write(path(both), [users, client].concat()).unwrap();
        std::fs::write(path("other"), "Other { a.B required; };").unwrap();
        let disabled =
            "org.apache.bookkeeper.auth.AuthProviderFactoryFactory$AuthenticationDisabledAuthProviderFactory";
        let (sasl, certificates) = (format!("{CLASS}={SASL}\n"), format!("{CLASS}={CERTIFICATES}\n"));
        let cases: [(&str, String, Option<&str>); 15] = [
            ("users", String::new(), Some("section Bookie are not asked for")),
            (both, String::new(), Some("section Bookie are not asked for")),
            (both, "usersFile=/u\n".to_owned(), Some("section Bookie are not asked for")),
            ("other", String::new(), Some("nothing uses it")),
            (
                "other",
                "saslJaasBookieSectionName=Other\n".to_owned(),
                Some("section Other are not asked for"),
            ),
            ("missing", String::new(), Some("it cannot be used")),
            ("client", "zkSaslEnable=false\n".to_owned(), Some("nothing uses it")),
            ("users", certificates, Some("section Bookie are not asked for")),
            ("users", sasl, None),
            ("users", format!("{CLASS}=null\n"), None),
            ("users", format!("{CLASS}={disabled}\n"), None),
            ("client", String::new(), None),
            ("client", "usersFile=/u\n".to_owned(), None),
            (both, "zkSaslEnable=true\n".to_owned(), None),
            ("other", "zkSaslSection=Other\n".to_owned(), None),
        ];
        let found = |args: &BookieArgs, text: &str, variable: Option<&Path>| {
            let mut file = Values::of(Some(text));
            file.overlay(
                variable
                    .map(|path| Variable {
                        key: JAAS.to_owned(),
                        name: "BOOKIE_EXTRA_OPTS".to_owned(),
                        value: path.display().to_string(),
                    })
                    .into_iter()
                    .collect(),
            );
            let mut draft = table::read(args, &mut file, |_| true);
            draft.config.tls = Some(tls(true));
            draft.config.auth = apply(&mut file, &draft, &Fake::default());
            metadata_security::apply(&mut file, &mut draft);
            file.faults.clear();
            check_jaas(args, &mut file, &draft, false);
            let texts = |found: Vec<Finding>| found.into_iter().map(|one| one.text).collect::<Vec<_>>();
            (texts(file.faults), texts(file.warnings))
        };
        for (name, text, why) in cases {
            let path = path(name);
            let args = BookieArgs { jaas_file: Some(path.clone()), ..BookieArgs::default() };
            let of_key = format!("{text}jaasFile={}\n", path.display());
            let of_variable = found(&BookieArgs::default(), &text, Some(&path));
            let (warnings, faults) = (of_variable.1, of_variable.0);
            assert!(faults.is_empty(), "{faults:?}");
            for (found, others) in
                [found(&args, &text, None), found(&BookieArgs::default(), &of_key, None), (warnings, faults)]
            {
                assert!(others.is_empty(), "{others:?}");
                assert_eq!(found.len(), usize::from(why.is_some()), "{name} {text} {found:?}");
                assert!(found.iter().all(|found| found.contains(why.unwrap_or_default())), "{found:?}");
                assert!(!found.concat().contains("tiger"));
            }
        }
    }

    #[test]
    fn only_users_who_may_start_the_bookie_do() {
        let faults = |text: &str| of(text).1;
        for fine in [
            "permittedStartupUsers=bookie\n",
            "permittedStartupUsers=root, bookie\n",
            "permittedStartupUsers=\n",
        ] {
            assert!(faults(fine).is_empty(), "{fine}");
        }
        let faults = faults("permittedStartupUsers=root,bookies\n");
        assert!(faults.len() == 1 && faults[0].contains("this is bookie"), "{faults:?}");
    }
}
