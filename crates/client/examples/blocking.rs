//! Writes lines to a ledger and reads them back, without async code.
//!
//! ```text
//! bindery standalone &
//! cargo run -p bindery-client --example blocking -- zk://127.0.0.1:2181/ledgers
//! ```

use std::error::Error;

use bindery_client::blocking::Client;
use bindery_client::{CreateOptions, EntryId};

fn main() -> Result<(), Box<dyn Error>> {
    let uri = std::env::args().nth(1).unwrap_or("zk://127.0.0.1:2181/ledgers".into());
    let client = Client::connect(bindery_client::Client::builder().metadata(uri.parse()?))?;

    let writer = client.create_ledger(CreateOptions::default())?;
    let id = writer.id();
    // Follows the ledger in a thread of its own, until it is closed.
    let reader = client.open(id)?;
    let follower = std::thread::spawn(move || reader.tail(EntryId::FIRST).filter(Result::is_ok).count());

    for number in 0..1000 {
        writer.enqueue(format!("line {number}\n").as_bytes())?;
    }
    let closed = writer.close()?;
    println!("ledger {id}: {} bytes", closed.length_bytes);

    let reader = client.open(id)?;
    let mut count = 0;
    for entry in &reader {
        let entry = entry?;
        assert_eq!(&entry.payload[..], format!("line {}\n", entry.id).as_bytes());
        count += 1;
    }
    let followed = follower.join().map_err(|_| "the follower panicked")?;
    println!("{count} entries read, {followed} followed");
    println!("all copies sound: {}", reader.verify(EntryId::FIRST, None)?.is_sound());

    client.delete_ledger(id)?;
    client.close()?;
    Ok(())
}
