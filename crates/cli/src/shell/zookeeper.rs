//! `zookeeper`: the few questions that charts ask ZooKeeper by `bin/pulsar zookeeper-shell`.

use super::options::{Given, Known};
use crate::exit::{self, Failure};
use crate::metadata_failure::{store_failure, unreachable};
use crate::output;
use bindery_metadata::store::{CreateMode, MetadataStore};
use bindery_metadata::{ConnectOptions, MetadataUri, StoreError};
use bytes::Bytes;

/// Asks one question.
pub(super) async fn run(words: &[String]) -> Result<(), Failure> {
    let known =
        [Known::value("server", "server"), Known::value("timeout", "timeout"), Known::flag("r", "readonly")];
    let given = Given::read("zookeeper", words, &known)?;
    let (servers, chroot) = servers(given.value("server").unwrap_or("localhost:2181"))?;
    let [action, path, data @ ..] = &given.rest[..] else {
        return Err(Failure::usage("zookeeper: give ls, get or create, and a path, for example ls /ledgers"));
    };
    let path = absolute(&chroot, path)?;
    let store = bindery_metadata::zookeeper::connect(&servers, ConnectOptions::default());
    let store = store.await.map_err(|error| unreachable(&servers.join(","), &error))?;
    let outcome = ask(&store, action, &path, data).await;
    let _ = store.close().await;
    outcome
}

/// The servers, and the node that all paths are below.
fn servers(text: &str) -> Result<(Vec<String>, String), Failure> {
    let (servers, chroot) = match text.split_once('/') {
        Some((servers, chroot)) => (servers, format!("/{}", chroot.trim_end_matches('/'))),
        None => (text, String::new()),
    };
    // The rules of a metadata URI hold for servers, and its messages.
    let uri: MetadataUri = format!("zk://{servers}/ledgers")
        .parse()
        .map_err(|error| Failure::usage(format!("-server {text}: {error}")))?;
    Ok((uri.servers, if chroot == "/" { String::new() } else { chroot }))
}

fn absolute(chroot: &str, path: &str) -> Result<String, Failure> {
    let below = path.strip_prefix('/').ok_or_else(|| {
        Failure::usage(format!(
            "zookeeper: {path:?} is no path: it begins with a slash, for example /ledgers"
        ))
    })?;
    let below = below.trim_end_matches('/');
    Ok(match (chroot.is_empty(), below.is_empty()) {
        (true, true) => "/".to_owned(),
        (false, true) => chroot.to_owned(),
        (_, false) => format!("{chroot}/{below}"),
    })
}

async fn ask(store: &dyn MetadataStore, action: &str, path: &str, data: &[String]) -> Result<(), Failure> {
    let failure = |error: StoreError| match error {
        StoreError::NoNode { .. } => {
            Failure::with_code(exit::NOT_FOUND, format!("Node does not exist: {path}"))
        }
        other => store_failure(&other, other.to_string()),
    };
    match action {
        "ls" => {
            let names = store.children(path).await.map_err(failure)?;
            output::write_text(&format!("[{}]\n", names.join(", ")))
        }
        "get" => {
            let node = store.get(path).await.map_err(failure)?;
            output::write_all(&[&node.data[..], b"\n"].concat())
        }
        "create" => {
            let data = Bytes::from(data.join(" ").into_bytes());
            match store.create(path, data, CreateMode::Persistent).await {
                Ok(made) => output::write_text(&format!("Created {}\n", made.path)),
                Err(StoreError::NodeExists { .. }) => {
                    Err(Failure::new(format!("Node already exists: {path}")))
                }
                Err(error) => Err(failure(error)),
            }
        }
        other => Err(Failure::usage(format!("zookeeper {other}: give ls, get or create"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_may_end_in_a_node() {
        let of = |text| servers(text).unwrap();
        assert_eq!(of("a,b:2182"), (vec!["a:2181".to_owned(), "b:2182".to_owned()], String::new()));
        assert_eq!(of("a:1/x/"), (vec!["a:1".to_owned()], "/x".to_owned()));
        assert!(servers("").is_err());
    }

    #[test]
    fn paths_are_below_that_node() {
        for (chroot, path, whole) in
            [("", "/", "/"), ("/x", "/", "/x"), ("", "/a/", "/a"), ("/x", "/a", "/x/a")]
        {
            assert_eq!(absolute(chroot, path).unwrap(), whole);
        }
        assert!(absolute("", "a").is_err());
    }
}
