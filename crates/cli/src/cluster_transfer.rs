//! `bindery cluster export` and `import`: a cluster's metadata as a file, to move it to another metadata store.

use crate::args::{ExportArgs, ImportArgs};
use crate::exit::Failure;
use crate::metadata_failure::{open_failure, store_failure};
use crate::metadata_session::{uri, with_session};
use crate::output;
use crate::private_file::PrivateFile;
use crate::progress::{Progress, Unit};
use bindery_metadata::transfer::{self, Dump, Export, ExportSummary, ImportError};
use bindery_metadata::{Layout, OpenError, StoreError};
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;

/// Writes the whole cluster to a file that others may not read, for it holds the passwords of ledgers; or to standard output for `-`.
pub async fn export(args: &ExportArgs) -> Result<(), Failure> {
    let summary = with_session(&args.metadata, async |layout| match args.file.as_os_str() == "-" {
        true => export_to_stdout(layout).await,
        false => export_to_file(layout, &args.file).await,
    })
    .await?;
    output::say(format!(
        "{}: {} nodes exported; left out: {} ephemeral nodes, {} registrations of bookies",
        args.metadata.metadata, summary.nodes, summary.ephemeral_left_out, summary.registrations_left_out
    ));
    if summary.registrations_left_out > 0 {
        output::say(
            "warning: bookies are running: ledgers created, closed or deleted from now on are not in the export. To move \
             the cluster, let nobody write until it runs on its new metadata store",
        );
    }
    Ok(())
}

/// Hands every part to `write` on a thread where it may block: the session is kept up meanwhile.
async fn write_parts(
    layout: &Layout,
    mut out: impl Write + Send + 'static,
) -> Result<(ExportSummary, impl Write + Send + 'static), Failure> {
    let progress = Progress::start("exporting", Unit::Nodes, None, true);
    let mut export = Export::new(layout);
    let read = |error: StoreError| store_failure(&error, format!("export: {error}"));
    while let Some(part) = export.next().await.map_err(read)? {
        progress.set(export.summary().nodes);
        let written = tokio::task::spawn_blocking(move || out.write_all(part.as_bytes()).map(|()| out)).await;
        out = written.map_err(Failure::new)?.map_err(|error| output::failure(&error))?;
    }
    Ok((export.summary(), out))
}

async fn export_to_stdout(layout: &Layout) -> Result<ExportSummary, Failure> {
    let out = output::raw_stdout().map_err(|error| output::failure(&error))?;
    Ok(write_parts(layout, out).await?.0)
}

async fn export_to_file(layout: &Layout, path: &Path) -> Result<ExportSummary, Failure> {
    let file = PrivateFile::create(path).map_err(Failure::new)?;
    let writer = file.writer().map_err(|error| output::failure(&error))?;
    let summary = write_parts(layout, writer).await?.0;
    file.publish().map_err(Failure::new)?;
    Ok(summary)
}

#[expect(clippy::disallowed_methods, reason = "a file of the user's")]
fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Reads and checks the whole file before anything else happens.
fn read(path: &Path) -> Result<Dump, Failure> {
    let name = path.display();
    let dump = match path.as_os_str() == "-" {
        true => Dump::read(&mut io::stdin().lock()),
        false => {
            let file = open(path).map_err(|error| Failure::new(format!("cannot open {name}: {error}")))?;
            Dump::read(&mut BufReader::with_capacity(1 << 20, file))
        }
    };
    dump.map_err(|error| Failure::new(format!("{name}: {error}; nothing was changed")))
}

/// Writes a cluster from a file, or from standard input for `-`, to an empty place in a metadata store.
pub async fn import(args: &ImportArgs) -> Result<(), Failure> {
    let uri = uri(&args.metadata)?;
    let reading = Progress::wait("reading the file");
    let dump = read(&args.file)?;
    drop(reading);
    let store = bindery_metadata::open_store(&uri, args.metadata.options()?).await;
    let store = store.map_err(|error| open_failure(&args.metadata.metadata, &OpenError::Store(error)))?;
    let progress = Progress::wait("importing");
    let outcome = transfer::import(&store, &uri.root, &dump).await;
    drop(progress);
    let opened = match &outcome {
        Ok(_) => Layout::open(store.clone(), &uri.root, uri.layout).await.map(drop),
        Err(_) => Ok(()),
    };
    // The session would end by itself; an error in ending it changes nothing.
    let _ = store.close().await;
    let summary = outcome.map_err(|error| match &error {
        ImportError::Store(cause) => store_failure(cause, error.to_string()),
        _ => Failure::new(&error),
    })?;
    opened.map_err(|error| Failure::new(format!("the cluster was imported, but: {error}")))?;
    let name = &args.metadata.metadata;
    match summary.already_there {
        true => {
            output::say(format!("{name}: all {} nodes were there already, nothing changed", summary.nodes))
        }
        false => output::say(format!(
            "{name}: {} nodes imported and compared, {} of them by an earlier attempt; {}",
            summary.nodes, summary.found, summary.ids
        )),
    }
    Ok(())
}
