//! Files as they are in use, and those that Java refuses.

use super::*;
use proptest::prelude::*;

const FILE: &str = r#"
// Of BookKeeper's documentation.
Bookie {
    org.apache.zookeeper.server.auth.DigestLoginModule required
        user_hd="tiger"   /* the
        client */
        user_bookkeeper=secret;
};
BookKeeper {
  org.apache.zookeeper.server.auth.DigestLoginModule REQUIRED username="hd" password="tiger";
};
/ a comment, too
Kerberos { com.sun.security.auth.module.Krb5LoginModule Sufficient useKeyTab=true
  keyTab="/etc/bk.keytab" principal="bookkeeper/a.example@EXAMPLE";
  other.Module optional; };
Empty {};
"#;

fn exposed(users: Vec<Credentials>) -> Vec<(String, String)> {
    users.into_iter().map(|known| (known.user, known.secret.expose().to_owned())).collect()
}

fn one_value(value: &str) -> Result<String, Error> {
    let file = Configuration::parse(&format!("S {{ m.M required k={value}; }};"))?;
    Ok(file.section("S").unwrap().modules[0].option("k").unwrap().expose().to_owned())
}

#[test]
fn files_of_bookkeeper_are_read() {
    let file = Configuration::parse(FILE).unwrap();
    let users = exposed(file.section("Bookie").unwrap().users());
    let pair = |user: &str, password: &str| (user.to_owned(), password.to_owned());
    assert_eq!(users, [pair("hd", "tiger"), pair("bookkeeper", "secret")]);
    assert!(file.section("Bookie").unwrap().login().is_none());
    let login = file.section("BookKeeper").unwrap().login().unwrap();
    assert_eq!((&*login.user, login.secret.expose()), ("hd", "tiger"));
    let kerberos = file.section("Kerberos").unwrap();
    assert_eq!(kerberos.line, 13);
    assert_eq!(kerberos.modules.len(), 2);
    assert_eq!(kerberos.modules[0].flag, Flag::Sufficient);
    assert_eq!(kerberos.modules[0].option("keyTab").unwrap().expose(), "/etc/bk.keytab");
    assert_eq!((&*kerberos.modules[1].class, kerberos.modules[1].flag), ("other.Module", Flag::Optional));
    assert!(file.section("Empty").unwrap().modules.is_empty());
    assert!(file.section("bookie").is_none(), "names have a case");
    assert_eq!(file.sections().len(), 4);
}

#[test]
fn the_last_of_several_values_counts() {
    let file = Configuration::parse("S { a.A required user_a=one user_b=two user_a=three; };").unwrap();
    let users = exposed(file.section("S").unwrap().users());
    assert_eq!(users[0], ("a".to_owned(), "three".to_owned()));
    assert_eq!(file.section("S").unwrap().modules[0].option("user_a").unwrap().expose(), "three");
}

/// The escapes of `StreamTokenizer`.
#[test]
fn values_are_unescaped_as_java_does() {
    for (value, expected) in [
        (r#""""#, ""),
        (r#""a b;}{=//'#""#, "a b;}{=//'#"),
        (r#""\"\\\q\'""#, "\"\\q'"),
        (r#""\a\b\f\n\r\t\v""#, "\u{7}\u{8}\u{c}\n\r\t\u{b}"),
        (r#""\101\60\7\08\4001\777""#, "A0\u{7}\u{0}8 01?7"),
        ("word-with_$*.0ü", "word-with_$*.0ü"),
        (r#""${/}etc${/}x""#, "/etc/x"),
        (r#""$a {b} $""#, "$a {b} $"),
        (r#""${open""#, "${open"),
        (r#""${{literal}}!""#, "${{literal}}!"),
    ] {
        assert_eq!(one_value(value).unwrap(), expected, "{value}");
    }
}

/// Invariant 1.
#[test]
fn what_java_refuses_is_refused_with_its_line() {
    for (text, line, why) in [
        ("{", 1, "the name of a section"),
        ("\nA", 2, "'{' must stand here, and there is the end of the file"),
        ("A {\n\n a.A", 3, "required, requisite"),
        ("A {\n a.A maybe; };", 2, "another word"),
        ("A {\r\n a.A required\r\n k v; };", 3, "'=' behind the name of an option"),
        ("A {\r a.A required\r\r k=; };", 4, "the value of an option"),
        ("A { a.A required k=1; };", 1, "begins with a digit"),
        ("A { a.A required k=-x; };", 1, "begins with a digit"),
        ("A { a.A required k='v'; };", 1, "single quote"),
        ("# A\nB {};", 1, "comments begin with '//'"),
        ("A { a.A required user@x=v; };", 1, "double quotes"),
        ("A { a.A required k=v }\n;", 1, "an option, or ';'"),
        ("A { a.A required k=v; }\nB {};", 2, "';' behind the '}'"),
        ("A {}; B {};\nA {};", 2, "there is a section A already, in line 1"),
        ("A { a.A required k=/etc/x; };\n", 2, "the end of the file"),
        ("A {\n a.A required k=\"v;\n };", 2, "not closed in its line"),
        ("A {\n a.A required k=\"v\\\n\"; };", 2, "not closed in its line"),
        ("A {\n a.A required k=\"${user.home}/x\"; };", 2, "system property"),
        ("A { /* never closed", 1, "the end of the file"),
    ] {
        let error = Configuration::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("line {line}: ")) && error.contains(why), "{text}: {error}");
    }
    let long = "/".repeat(FILE_BYTES_MAX + 1);
    assert_eq!(Configuration::parse(&long).unwrap_err(), Error::TooLong(long.len()));
}

/// Invariant 2.
#[test]
fn debug_and_errors_show_no_value() {
    let shown = format!("{:?}", Configuration::parse(FILE).unwrap());
    assert!(!shown.contains("tiger") && !shown.contains("secret"), "{shown}");
    for text in [
        "A { a.A required password=tiger=x; };",
        "A { a.A required password=tiger tiger; };",
        "A { tiger tiger; };",
    ] {
        let error = Configuration::parse(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("tiger"), "{error}");
    }
}

proptest! {
    /// Crate invariant 2.
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}") {
        let _ = Configuration::parse(&text);
    }

    #[test]
    fn no_text_of_its_alphabet_makes_it_panic(text in "[aA.1 {};=\"\\\\/*$\r\n-]{0,80}") {
        let _ = Configuration::parse(&text);
    }

    #[test]
    fn a_value_with_its_escapes_is_read_back(value in "[^\r\n]{0,40}") {
        prop_assume!(!value.contains("${"));
        let quoted = format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
        prop_assert_eq!(one_value(&quoted).unwrap(), value);
    }
}
