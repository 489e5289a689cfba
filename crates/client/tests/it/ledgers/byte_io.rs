//! Bytes over ledgers, with tokio's traits.

use std::io::ErrorKind;
use std::time::Duration;

use bindery_client::{
    AppendError, BookieId, ByteReader, ByteWriter, CloseError, Entry, EntryId, LedgerId, LedgerReader,
    OpenMode, ReadError, WhyStopped,
};
use futures_util::{FutureExt, TryStreamExt};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::ledgers::PASSWORD;
use crate::ledgers::cluster::{Cluster, entry, options};

/// Bytes of which no two places look alike.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn bookie(id: &str) -> BookieId {
    BookieId::new(id).unwrap()
}

async fn writer(client: &bindery_client::Client) -> ByteWriter {
    ByteWriter::new(client.create_ledger(options(3, 2, 2)).await.unwrap())
}

async fn open(client: &bindery_client::Client, id: LedgerId, how: OpenMode) -> LedgerReader {
    client.open_ledger(id, PASSWORD, how).await.unwrap()
}

/// Sizes of the entries, from the first one on.
async fn sizes(reader: &LedgerReader) -> Vec<usize> {
    let Some(last) = reader.last_add_confirmed() else { return Vec::new() };
    let entries: Vec<Entry> = reader.read(EntryId::FIRST..=last).try_collect().await.unwrap();
    entries.iter().map(|entry| entry.payload.len()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_copied_in_comes_out_through_little_room() {
    let cluster = Cluster::start(3).await;
    let client = cluster.builder().await.memory_limit(1 << 20).connect().await.unwrap();
    let data = pattern(24_000_001);
    let mut into = writer(&client).await.entry_size_bytes(100_000);
    let id = into.id();
    let source = &mut &data[..];
    let copying = tokio::io::copy(source, &mut into);
    let mut most = 0;
    let watching = async {
        loop {
            most = most.max(client.memory_in_use().adds_bytes);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let copied = tokio::select! {
        copied = copying => copied.unwrap(),
        () = watching => unreachable!("it goes on for ever"),
    };
    assert_eq!(copied, data.len() as u64);
    assert_eq!(client.memory_in_use().adds_bytes, 0, "a copy ends with a flush: all is acknowledged");
    assert!(most <= 1 << 20, "{most}");
    into.shutdown().await.unwrap();
    let closed = into.closed().unwrap();
    assert_eq!((closed.last_entry, closed.length_bytes), (Some(entry(240)), data.len() as u64));
    // Again, and what comes behind it.
    into.shutdown().await.unwrap();
    into.flush().await.unwrap();
    let late = into.write_all(b"late").await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotConnected, "{late}");

    let reader = open(&client, id, OpenMode::ReadOnly).await;
    let mut out = Vec::new();
    let copied = tokio::io::copy(&mut reader.byte_reader(..), &mut out).await.unwrap();
    assert_eq!((copied, out == data), (data.len() as u64, true));
    // The same without a copy on the way, and a part of it that goes over entries.
    let mut out = Vec::new();
    tokio::io::copy_buf(&mut reader.byte_reader(entry(3)..), &mut out).await.unwrap();
    assert!(out == data[300_000..]);
    let mut out = vec![0; 250_000];
    reader.byte_reader(entry(1)..=entry(9)).read_exact(&mut out).await.unwrap();
    assert!(out == data[100_000..350_000]);
    let mut out = Vec::new();
    reader.byte_reader(entry(239)..entry(240)).read_to_end(&mut out).await.unwrap();
    assert!(out == data[23_900_000..24_000_000]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_end_where_they_are_full_and_where_a_flush_is() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let mut into = writer(&client).await.entry_size_bytes(10);
    let id = into.id();
    into.write_all(b"abc").await.unwrap();
    into.write_all(b"").await.unwrap();
    into.write_all(b"defghijKLMNO").await.unwrap();
    into.flush().await.unwrap();
    let confirmed = into.progress().borrow().confirmed;
    assert_eq!(confirmed, Some(entry(1)), "a flush waits for the acknowledgement");
    into.flush().await.unwrap();
    // One write takes what goes into one entry.
    assert_eq!(into.write(&[b'p'; 25]).await.unwrap(), 10);
    into.write_all(&[b'q'; 30]).await.unwrap();
    into.write_all(b"rest").await.unwrap();
    into.shutdown().await.unwrap();
    let reader = open(&client, id, OpenMode::ReadOnly).await;
    assert_eq!(sizes(&reader).await, [10, 5, 10, 10, 10, 10, 4]);
    let mut lines = String::new();
    reader.byte_reader(..).read_to_string(&mut lines).await.unwrap();
    assert_eq!(lines, format!("abcdefghijKLMNO{}{}rest", "p".repeat(10), "q".repeat(30)));

    // Sizes outside of what is possible, and a default that a small frame has no room for.
    let small = cluster.builder().await.memory_limit(20_000).connect().await.unwrap();
    for (size, entries) in [(Some(0), vec![1; 3]), (Some(usize::MAX), vec![3]), (None, vec![3])] {
        let mut into = writer(&small).await;
        if let Some(size) = size {
            into = into.entry_size_bytes(size);
        }
        let id = into.id();
        into.write_all(b"xyz").await.unwrap();
        into.shutdown().await.unwrap();
        assert_eq!(sizes(&open(&small, id, OpenMode::ReadOnly).await).await, entries, "{size:?}");
    }
    let mut into = writer(&small).await;
    let (id, data) = (into.id(), pattern(100_000));
    into.write_all(&data).await.unwrap();
    into.shutdown().await.unwrap();
    let mut out = Vec::new();
    open(&small, id, OpenMode::ReadOnly).await.byte_reader(..).read_to_end(&mut out).await.unwrap();
    assert!(out == data);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_ledger_and_empty_entries_have_no_bytes() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let mut into = writer(&client).await;
    into.flush().await.unwrap();
    into.shutdown().await.unwrap();
    let closed = into.closed().unwrap();
    assert_eq!((closed.last_entry, closed.length_bytes), (None, 0));
    let reader = open(&client, into.id(), OpenMode::ReadOnly).await;
    for mut bytes in [reader.byte_reader(..), reader.byte_reader(entry(7)..), reader.byte_reader(..entry(0))]
    {
        assert_eq!(bytes.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(bytes.read(&mut [0; 8]).await.unwrap(), 0);
    }
    let beyond = reader.byte_reader(..=entry(0)).read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);

    let entries = client.create_ledger(options(3, 2, 2)).await.unwrap();
    let id = entries.id();
    for payload in ["", "one\ntw", "", "", "o\n", ""] {
        entries.enqueue(payload.as_bytes()).await.unwrap();
    }
    entries.close().await.unwrap();
    let mut lines = open(&client, id, OpenMode::ReadOnly).await.byte_reader(..).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("one"));
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("two"));
    assert_eq!(lines.next_line().await.unwrap(), None);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_without_room_holds_its_caller_up_and_takes_each_byte_once() {
    let mut cluster = Cluster::start(1).await;
    let client = cluster
        .builder()
        .await
        .memory_limit(100_000)
        .bookie_patience(Duration::from_secs(60))
        .connect()
        .await
        .unwrap();
    let entries = client.create_ledger(options(1, 1, 1)).await.unwrap();
    let id = entries.id();
    let mut into = ByteWriter::new(entries).entry_size_bytes(10_000);
    into.write_all(&pattern(10_000)).await.unwrap();
    into.flush().await.unwrap();
    cluster.stop_bookie(&bookie("b0")).await;
    // Writes go in until the room is used up. A write that is pending takes no byte, however often it is tried and given up.
    let (data, mut taken) = (pattern(1_000_000), 10_000);
    let mut refused = 0;
    while refused < 50 {
        match into.write(&data[taken..taken + 3_000]).now_or_never() {
            Some(bytes) => taken += bytes.unwrap(),
            None => refused += 1,
        }
    }
    assert!((60_000..150_000).contains(&taken), "{taken}: what the limit has room for, and one entry");
    assert!(into.flush().now_or_never().is_none(), "nothing acknowledges it");
    cluster.start_bookie(0).await;
    into.write_all(&data[taken..200_000]).await.unwrap();
    into.shutdown().await.unwrap();
    let reader = open(&client, id, OpenMode::ReadOnly).await;
    let mut out = Vec::new();
    reader.byte_reader(..).read_to_end(&mut out).await.unwrap();
    assert!(out == data[..200_000], "{} bytes", out.len());
    cluster.stop().await;
}

/// There is room for one entry at a time: a writer that held it for later would have the other one wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_took_its_bytes_holds_no_room_that_another_waits_for() {
    let mut cluster = Cluster::start(1).await;
    let patience = Duration::from_secs(60);
    let builder = cluster.builder().await.memory_limit(100_000).bookie_patience(patience);
    let client = builder.connect().await.unwrap();
    let mut writers = Vec::new();
    for _ in 0..2 {
        let entries = client.create_ledger(options(1, 1, 1)).await.unwrap();
        writers.push(ByteWriter::new(entries).entry_size_bytes(60_000));
    }
    let [first, second] = &mut writers[..] else { panic!("two") };
    let data = pattern(120_000);
    cluster.stop_bookie(&bookie("b0")).await;
    // One entry is on its way, and each writer has taken another one.
    first.write_all(&data).now_or_never().expect("a full entry is taken").unwrap();
    second.write_all(&data[..60_000]).now_or_never().expect("a full entry is taken").unwrap();
    cluster.start_bookie(0).await;
    let flushed = tokio::time::timeout(Duration::from_secs(60), second.flush()).await;
    flushed.expect("the first writer holds room that it does not use").unwrap();
    second.write_all(&data[60_000..]).await.unwrap();
    for mut into in writers {
        into.shutdown().await.unwrap();
        let mut out = Vec::new();
        let reader = open(&client, into.id(), OpenMode::ReadOnly).await;
        reader.byte_reader(..).read_to_end(&mut out).await.unwrap();
        assert!(out == data);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_and_a_shutdown_that_were_left_go_on_with_the_next_call() {
    let mut cluster = Cluster::start(1).await;
    let patience = Duration::from_secs(60);
    let client = cluster.builder().await.bookie_patience(patience).connect().await.unwrap();
    let entries = client.create_ledger(options(1, 1, 1)).await.unwrap();
    entries.append(b"zero").await.unwrap();
    cluster.stop_bookie(&bookie("b0")).await;
    entries.enqueue(b"enqueued before").await.unwrap();
    let mut into = ByteWriter::new(entries);
    let id = into.id();
    assert!(into.flush().now_or_never().is_none(), "a flush waits for what was enqueued before");
    // There is room in the buffer while a flush waits.
    for part in ["one ", "entry"] {
        into.write_all(part.as_bytes()).now_or_never().expect("it need not wait").unwrap();
    }
    cluster.start_bookie(0).await;
    into.flush().await.unwrap();
    assert_eq!(into.progress().borrow().confirmed, Some(entry(2)), "a flush waits for all that was written");

    cluster.stop_bookie(&bookie("b0")).await;
    into.write_all(b"last").await.unwrap();
    assert!(into.shutdown().now_or_never().is_none(), "nothing acknowledges it");
    let late = into.write_all(b"late").await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotConnected, "{late}");
    assert!(into.flush().now_or_never().is_none());
    assert_eq!(into.closed(), None);
    cluster.start_bookie(0).await;
    into.flush().await.unwrap();
    assert_eq!(into.closed().unwrap().last_entry, Some(entry(3)), "the flush went on with the close");
    into.shutdown().await.unwrap();
    let mut out = String::new();
    let reader = open(&client, id, OpenMode::ReadOnly).await;
    reader.byte_reader(..).read_to_string(&mut out).await.unwrap();
    assert_eq!((out.as_str(), sizes(&reader).await), ("zeroenqueued beforeone entrylast", vec![4, 15, 9, 4]));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_is_dropped_leaves_the_ledger_with_what_was_flushed() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let mut into = writer(&client).await.entry_size_bytes(1_000);
    let (id, data) = (into.id(), pattern(2_500));
    into.write_all(&data).await.unwrap();
    into.flush().await.unwrap();
    into.write_all(b"not flushed").await.unwrap();
    drop(into);
    assert!(!open(&client, id, OpenMode::ReadOnly).await.is_closed());
    let reader = open(&client, id, OpenMode::Recover).await;
    let mut out = Vec::new();
    reader.byte_reader(..).read_to_end(&mut out).await.unwrap();
    assert!(out == data);

    // Given back instead, it is a writer of entries again.
    let ledger = client.create_handed_over(options(3, 2, 2)).await.unwrap();
    for turn in 0..2 {
        let mut into = ByteWriter::new(client.open_for_append(ledger, PASSWORD).await.unwrap());
        into.write_all(b"bytes").await.unwrap();
        let entries = into.into_writer().await.unwrap();
        assert_eq!(entries.append(b"an entry").await.unwrap(), entry(2 * turn + 1));
        entries.hand_over().await.unwrap();
    }
    let reader = open(&client, ledger, OpenMode::ReadOnly).await;
    let mut out = String::new();
    reader.byte_reader(..).read_to_string(&mut out).await.unwrap();
    assert_eq!(out, "bytesan entry".repeat(2));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_ledger_are_inside_and_stay() {
    let mut cluster = Cluster::start(2).await;
    let (client, other) = (cluster.client().await, cluster.client().await);
    let mut into = ByteWriter::new(client.create_ledger(options(2, 2, 2)).await.unwrap());
    let id = into.id();
    into.write_all(b"safe").await.unwrap();
    into.flush().await.unwrap();
    open(&other, id, OpenMode::Recover).await;
    into.write_all(b"lost").await.unwrap();
    let fenced = into.flush().await.unwrap_err();
    assert_eq!(fenced.kind(), ErrorKind::BrokenPipe, "{fenced}");
    let inside = |error: &std::io::Error| error.get_ref().and_then(|inner| inner.downcast_ref()).cloned();
    let Some(AppendError::Stopped(stopped)) = inside(&fenced) else { panic!("{fenced}") };
    assert_eq!((&stopped.why, stopped.last_confirmed), (&WhyStopped::Fenced, Some(entry(0))));
    for again in [
        into.write_all(b"x").await.unwrap_err(),
        into.flush().await.unwrap_err(),
        into.shutdown().await.unwrap_err(),
    ] {
        assert_eq!(inside(&again), Some(AppendError::Stopped(stopped.clone())), "{again}");
    }
    assert_eq!(into.closed(), None);
    let error = into.into_writer().await.unwrap_err();
    assert_eq!(error, AppendError::Stopped(stopped));

    // Closed by somebody else, with less than this writer's.
    let mut into = ByteWriter::new(client.create_ledger(options(2, 2, 2)).await.unwrap());
    open(&other, into.id(), OpenMode::Recover).await;
    into.write_all(b"lost").await.unwrap();
    let error = into.shutdown().await.unwrap_err();
    let inside = |error: &std::io::Error| error.get_ref().and_then(|inner| inner.downcast_ref()).cloned();
    let closing: Option<CloseError> = inside(&error);
    assert!(closing.is_some(), "{error}");
    for again in [
        into.shutdown().await.unwrap_err(),
        into.flush().await.unwrap_err(),
        into.write_all(b"x").await.unwrap_err(),
    ] {
        assert_eq!((again.kind(), inside(&again)), (ErrorKind::BrokenPipe, closing.clone()), "{again}");
    }
    assert!(matches!(into.into_writer().await.unwrap_err(), AppendError::Stopped(_)));

    // A reader does not take its end for that of the ledger.
    let reader = open(&client, id, OpenMode::ReadOnly).await;
    cluster.stop_bookie(&bookie("b0")).await;
    cluster.stop_bookie(&bookie("b1")).await;
    let mut bytes = reader.byte_reader(..);
    for _ in 0..2 {
        let error = bytes.read(&mut [0; 8]).await.unwrap_err();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        assert!(matches!(inner, Some(ReadError::Unavailable { .. })), "{error}");
    }
    client.close().await;
    let mut tail = ByteReader::new(reader.tail(EntryId::FIRST));
    assert!(tail.read(&mut [0; 8]).await.is_err());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_followed_while_they_are_written() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let mut into = writer(&client).await.entry_size_bytes(1_000);
    let reader = open(&client, into.id(), OpenMode::ReadOnly).await;
    let mut bytes = ByteReader::new(reader.tail(EntryId::FIRST));
    let (data, mut out) = (pattern(50_500), vec![0; 50_000]);
    let writing = async {
        for part in data.chunks(777) {
            into.write_all(part).await.unwrap();
        }
        into.flush().await.unwrap();
        into
    };
    let (mut into, read) = tokio::join!(writing, bytes.read_exact(&mut out));
    read.unwrap();
    assert!(out == data[..50_000]);
    into.shutdown().await.unwrap();
    let mut rest = Vec::new();
    bytes.read_to_end(&mut rest).await.unwrap();
    assert!(rest == data[50_000..]);
    cluster.stop().await;
}
