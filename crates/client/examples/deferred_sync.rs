//! Writes lines with deferred sync: bookies acknowledge an entry before they sync it, and it is confirmed by the next force.
//!
//! ```text
//! bindery standalone &
//! cargo run -p bindery-client --example deferred_sync -- zk://127.0.0.1:2181/ledgers
//! ```
//! Each line is an entry. An empty line waits until all are acknowledged, a line with a dot forces; both say how far the
//! ledger is. The end of the input closes the ledger, which forces as well. `E QW QA` and a password may follow the URI.

use std::error::Error;

use bindery_client::{Client, CreateOptions, EntryId, LedgerWriter, Quorum};

fn report(writer: &LedgerWriter) {
    let progress = writer.progress().borrow().clone();
    let [acknowledged, confirmed] = [progress.acknowledged, progress.confirmed].map(EntryId::to_wire);
    println!("acknowledged {acknowledged} confirmed {confirmed}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().unwrap_or("zk://127.0.0.1:2181/ledgers".into());
    let mut size = || arguments.next().map_or(Ok(1), |text| text.parse());
    let quorum = Quorum::new(size()?, size()?, size()?)?;
    let mut options = CreateOptions::new(quorum).deferred_sync(true);
    options.password = arguments.next().unwrap_or_default().into_bytes();

    let client = Client::builder().metadata(uri.parse()?).connect().await?;
    let writer = client.create_ledger(options).await?;
    println!("ledger {}", writer.id());
    // Blocks this thread and no task.
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "" => {
                writer.drain().await?;
                report(&writer);
            }
            "." => {
                writer.force().await?;
                report(&writer);
            }
            line => {
                writer.enqueue(format!("{line}\n").as_bytes()).await?;
            }
        }
    }
    let closed = writer.close().await?;
    println!("closed {} length {}", EntryId::to_wire(closed.last_entry), closed.length_bytes);
    client.close().await;
    Ok(())
}
