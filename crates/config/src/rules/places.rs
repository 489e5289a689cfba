//! Where things are: the cluster's metadata, and the bookie's directories.

use crate::sources::values::{Values, absolute};
use crate::table::Draft;
use crate::table::draft::PlaceKeys;
use crate::table::flags::BookieArgs;
use bindery_metadata::MetadataUri;
use bindery_server::config::BookieConfig;
use std::path::{Path, PathBuf};

pub(super) fn metadata(args: &BookieArgs, file: &mut Values, keys: &mut PlaceKeys) -> Option<MetadataUri> {
    let former = keys.servers.as_ref().map(|servers| {
        format!("zk://{}{}", servers.replace(',', ";"), keys.root.as_deref().unwrap_or("/ledgers"))
    });
    let of_flag = args.metadata.clone().map(|uri| (None, uri));
    let of_file = keys.metadata.take().map(|uri| (Some("metadataServiceUri"), uri));
    let of_servers = former.map(|uri| (Some("zkServers"), uri));
    let of_shell = args.metadata_of_shell.clone().map(|uri| (None, uri));
    let Some((key, uri)) = of_flag.or(of_file).or(of_servers).or(of_shell) else {
        file.faults.push(
            "no metadata store: give --metadata zk+hierarchical://HOST:PORT/ledgers, metadataServiceUri in the configuration file \
             or BINDERY_METADATA"
                .to_owned()
                .into(),
        );
        return None;
    };
    match uri.parse::<MetadataUri>() {
        Ok(parsed) => {
            if let Some(key) = key.filter(|_| uri.starts_with("metadata-store:")) {
                // Not what the URI seems to say.
                let root = &parsed.root;
                file.note(
                    key,
                    format!("{key}={uri}: the root of the cluster is {root}, as for Pulsar's driver"),
                );
            }
            Some(parsed)
        }
        Err(error) => {
            let text = bindery_metadata::UriError::to_string(&error);
            match key {
                Some(key) => file.fault(key, format!("{key}: {text}")),
                None => file.faults.push(text.into()),
            }
            None
        }
    }
}

pub(super) fn directories(args: &BookieArgs, file: &mut Values, draft: &mut Draft) {
    let Draft { config, places, .. } = draft;
    let (several, one) = (places.journals.take(), places.journal.take());
    if several.is_some() && one.is_some() && several != one {
        file.warn(
            "journalDirectory",
            "journalDirectory does not count beside journalDirectories, as in BookKeeper",
        );
    }
    let journals = several.map(|text| ("journalDirectories", text));
    let journals = journals.or(one.map(|text| ("journalDirectory", text)));
    let ledgers = places.ledgers.take().map(|text| ("ledgerDirectories", text));
    if let Some(home) = &args.data {
        below(absolute(home, file), config);
    } else if !args.journal_dir.is_empty() {
        config.journal_dirs = args.journal_dir.iter().map(|dir| absolute(dir, file)).collect();
        config.ledger_dirs = args.ledger_dir.iter().map(|dir| absolute(dir, file)).collect();
        distinct("--journal-dir", "--ledger-dir", file, config);
    } else if let (Some(journals), Some(ledgers)) = (journals, ledgers) {
        let (journal_key, ledger_key) = (journals.0, ledgers.0);
        config.journal_dirs = listed(journals, file);
        config.ledger_dirs = listed(ledgers, file);
        distinct(journal_key, ledger_key, file, config);
    } else {
        file.faults.push(
            "no directories: give --data DIR, or --journal-dir DIR and --ledger-dir DIR, or journalDirectories and \
             ledgerDirectories in the configuration file"
                .to_owned()
                .into(),
        );
    }
    for dir in config.journal_dirs.iter().filter(|dir| dir.to_string_lossy().contains(',')) {
        let dir = dir.display();
        let text = format!("journal directory {dir}: a comma separates directories, choose another name");
        file.faults.push(text.into());
    }
}

/// Journal and ledgers side by side in one directory.
fn below(home: PathBuf, config: &mut BookieConfig) {
    config.journal_dirs = vec![home.join("journal")];
    config.ledger_dirs = vec![home.join("ledgers")];
    config.home = Some(home);
}

/// A directory has one owner. Java lets one directory hold a journal and ledgers; where there is only that one, it is
/// taken as --data takes it, and the two get directories of their own inside. With several such directories no check
/// would find that one of them has the data of a Java bookie, which stands beside these subdirectories.
fn distinct(journal_key: &str, ledger_key: &str, file: &mut Values, config: &mut BookieConfig) {
    let (journals, ledgers) = (&config.journal_dirs, &config.ledger_dirs);
    if let ([journal], [ledgers]) = (journals.as_slice(), ledgers.as_slice())
        && journal == ledgers
    {
        let home = journal.clone();
        let shown = home.display();
        file.note(
            ledger_key,
            format!("{journal_key} and {ledger_key} are both {shown}: the journal is in {shown}/journal, ledgers in {shown}/ledgers"),
        );
        below(home, config);
        return;
    }
    let mut faults = Vec::new();
    for (key, dirs) in [(journal_key, journals), (ledger_key, ledgers)] {
        for (at, dir) in dirs.iter().enumerate() {
            if dirs[..at].contains(dir) {
                faults.push((key, format!("{key} has {} twice: remove one", dir.display())));
            }
        }
    }
    for dir in ledgers.iter().filter(|dir| journals.contains(dir)) {
        let dir = dir.display();
        faults.push((
            ledger_key,
            format!(
                "{dir} stands in {journal_key} and in {ledger_key}: with several directories, give the journal and the \
                 ledgers different ones, for example {dir}/journal and {dir}/ledgers"
            ),
        ));
    }
    for (key, text) in faults {
        file.fault(key, text);
    }
}

/// The directories that a key of the file lists. An empty name would be the directory that the bookie happens to be
/// started in.
fn listed((key, text): (&str, String), file: &mut Values) -> Vec<PathBuf> {
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    if names.contains(&"") {
        file.fault(
            key,
            format!("{key} has an empty name in {text:?}: remove the comma that nothing stands beside"),
        );
        return Vec::new();
    }
    names.into_iter().map(|name| absolute(Path::new(name), file)).collect()
}
