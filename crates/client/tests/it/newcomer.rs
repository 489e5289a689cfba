//! A program that depends on this crate, tokio and futures alone, and what it can do so: keep, spell out, replace.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bindery_client::metadata::{Layout, SaslLogin, Security, StoreFile};
use bindery_client::resolver::{Disk, NetworkResolver, RealDisk, Resolution, ResolveError, TableResolver};
use bindery_client::tier::{ClusterId, ObjectId, ObjectRef, Reconciliation, TierExtent};
use bindery_client::transport::{
    AddAnswer, AddRequest, AddSink, Answer, BatchReadRequest, BookieError, Connection, LacAnswer,
    PollRequest, ReadRequest, Transport,
};
use bindery_client::{
    AppendError, BookieId, Bytes, Candidates, Choice, Client, ClientBuilder, CreateError, CreateOptions,
    DigestType, DiskWeights, Entry, EntryId, ErrorCode, FusedStream, LedgerId, LedgerInfo, LedgerMetadata,
    LedgerReader, LedgerSecret, LedgerState, Location, MasterKey, MetadataFormatVersion, OpenMode, Permit,
    Placement, Progress, ProgressWatch, Quorum, RackAware, Random, RandomPlacement, ReadError, Reconcile,
    RegionAware, SeededRandom, Segment, StoredBatch, StoredEntry, Stream, SystemRandom, Unmet, Version,
    Wanted, WhyStopped,
};
use futures_util::{StreamExt, TryStreamExt};

use crate::ledgers::cluster::Cluster;

/// All that a program could want to keep.
struct App {
    client: Client,
    progress: ProgressWatch,
    last: Option<Bytes>,
    version: Version,
    room: Option<Permit>,
}

/// Always the same bookies, and none that stands in the attic.
struct Fixed;

impl Placement for Fixed {
    fn choose(&self, candidates: &Candidates, wanted: Wanted<'_>) -> Choice {
        let attic = Location::new("/attic").unwrap();
        let locations: &BTreeMap<BookieId, Location> = &candidates.locations;
        let usable = candidates.writable.iter().filter(|bookie| locations.get(bookie) != Some(&attic));
        let chosen: Vec<BookieId> = usable
            .filter(|bookie| !wanted.ensemble.contains(bookie))
            .take(wanted.positions.len())
            .cloned()
            .collect();
        let mut choice = Choice::new(chosen);
        if choice.bookies.len() < wanted.positions.len() {
            choice.unmet = Some(Unmet::new("racks", wanted.quorum.ensemble_size(), choice.bookies.len()));
        }
        choice
    }
}

struct Everywhere(&'static str);

impl NetworkResolver for Everywhere {
    fn resolve<'a>(&'a self, hosts: &'a [String]) -> Resolution<'a> {
        let place = Location::new(self.0).map(Some);
        let places = place.map(|place| vec![place; hosts.len()]);
        Box::pin(async move { places.map_err(|error| ResolveError::Other(error.to_string())) })
    }
}

/// A bookie that takes everything and remembers nothing.
struct Sink;

impl Transport for Sink {
    fn add(&self, bookie: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>) {
        let (bookie, sink): (BookieId, Arc<dyn AddSink>) = (bookie.clone(), sink.clone());
        let AddRequest { entry, tag, .. } = request;
        tokio::spawn(async move {
            let answer = AddAnswer { entry, tag, connection: Connection::default(), result: Ok(()) };
            sink.added(&bookie, &[answer]);
        });
    }

    fn read(&self, _: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        let _: Option<MasterKey> = request.fence;
        Box::pin(async { Err(BookieError::Refused(ErrorCode::NoEntry)) })
    }

    fn batch_read(&self, _: &BookieId, _: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        Box::pin(async { Err(BookieError::Refused(ErrorCode::NoEntry)) })
    }

    fn read_lac(&self, _: &BookieId, _: LedgerId) -> Answer<'_, LacAnswer> {
        Box::pin(async { Ok(LacAnswer::new(None, None)) })
    }

    fn write_lac(&self, _: &BookieId, _: LedgerId, _: MasterKey, _: EntryId, _: Bytes) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn poll_lac(&self, _: &BookieId, request: PollRequest) -> Answer<'_, Option<EntryId>> {
        Box::pin(async move { Ok(request.previous) })
    }
}

/// Whatever the stream is of.
async fn lengths(entries: impl FusedStream<Item = Result<Entry, ReadError>>) -> Vec<usize> {
    let entries: Vec<Entry> = pin!(entries).by_ref().try_collect().await.unwrap();
    entries.iter().map(|entry: &Entry| entry.payload.len()).collect()
}

type Entries = Pin<Box<dyn Stream<Item = Result<Entry, ReadError>> + Send>>;

fn rack_aware<R: Random + 'static>(builder: ClientBuilder, random: R) -> ClientBuilder {
    builder.placement(RackAware::new(random).racks_min(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_lives_with_names_of_this_crate_alone() {
    let cluster = Cluster::start(3).await;
    let layout: Layout = cluster.layout().await;
    let builder = rack_aware(Client::builder().layout(layout), SystemRandom)
        .network_resolver(Everywhere("/eu/rack-1"))
        .location(Location::new("/eu/rack-1").unwrap())
        .disk_weights(DiskWeights::new().multiple_max(2).interval(Duration::from_secs(60)))
        .memory_limit(16 << 20);
    let client = builder.connect().await.unwrap();
    let options = CreateOptions::new(Quorum::new(3, 2, 2).unwrap())
        .digest(DigestType::Hmac)
        .password(b"secret")
        .property("application", "newcomer");
    let writer = client.create_ledger(options).await.unwrap();
    let id: LedgerId = writer.id();
    let reader: LedgerReader = client.open_ledger(id, b"secret", OpenMode::ReadOnly).await.unwrap();
    let mut app =
        App { client, progress: writer.progress(), last: None, version: Version::counted(0), room: None };
    let following = tokio::spawn(lengths(reader.tail(EntryId::FIRST)));
    for size in 0..5 {
        writer.enqueue(&vec![1; size]).await.unwrap();
    }
    assert_eq!(writer.drain().await.unwrap(), EntryId::new(4));
    app.progress.wait_for(|progress: &Progress| progress.confirmed >= EntryId::new(4)).await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(following.await.unwrap(), [0, 1, 2, 3, 4]);
    let mut boxed: Entries = Box::pin(reader.read(EntryId::new(3).unwrap()..=EntryId::new(4).unwrap()));
    let entry: Entry = boxed.next().await.unwrap().unwrap();
    app.last = Some(entry.payload);
    assert_eq!(app.last.as_deref(), Some(&[1; 3][..]));

    let info: LedgerInfo = app.client.metadata(id).await.unwrap();
    app.version = info.version;
    let metadata: &LedgerMetadata = &info.metadata;
    assert_ne!(metadata.format_version, MetadataFormatVersion::V1);
    let segments: &[Segment] = metadata.segments();
    assert_eq!((segments.len(), &metadata.custom["application"][..]), (1, &b"newcomer"[..]));
    let secret: &LedgerSecret = metadata.secret.as_ref().unwrap();
    assert_eq!((secret.digest_type, &secret.password[..]), (DigestType::Hmac, &b"secret"[..]));
    assert!(matches!(metadata.state, LedgerState::Closed { length_bytes: 10, .. }));
    let mut stored =
        app.client.bulk(Default::default()).open(id).await.unwrap().read(EntryId::FIRST, entry.id);
    let batch: StoredBatch = stored.next().await.unwrap().unwrap();
    let (entries, permit): (Vec<StoredEntry>, Permit) = batch.into_parts();
    app.room = Some(permit);
    assert!(entries[0].is_verified && app.room.is_some() && app.version == info.version);

    let fenced = app.client.create_ledger(CreateOptions::new(Quorum::new(1, 1, 1).unwrap())).await.unwrap();
    app.client.open_ledger(fenced.id(), b"", OpenMode::Recover).await.unwrap();
    let why = match fenced.append(b"late").await.unwrap_err() {
        AppendError::Stopped(stopped) => stopped.why,
        other => panic!("{other}"),
    };
    assert_eq!(why, WhyStopped::Fenced);
    let request = Reconcile {
        cluster: ClusterId::from_bytes([1; 16]),
        ledgers: vec![Reconciliation {
            ledger: id,
            last: Some(EntryId::FIRST),
            extents: vec![TierExtent {
                first: EntryId::FIRST,
                last: EntryId::FIRST,
                object: ObjectRef {
                    id: ObjectId::new(1, [0; 10]),
                    length_bytes: 1,
                    footer_offset: 0,
                    footer_crc: 0,
                    etag_crc: 0,
                },
            }],
            created_ms: None,
        }],
        is_restore: false,
    };
    let bookie = BookieId::new("b0").unwrap();
    assert!(app.client.reconcile(&bookie, request, Duration::from_secs(5)).await.is_err(), "it has no tier");
    app.client.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_the_client_can_be_replaced_with_names_of_this_crate_alone() {
    let cluster = Cluster::start(2).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let table = TableResolver::open(disk, file.path()).unwrap();
    let builder = Client::builder().layout(cluster.layout().await).transport(Arc::new(Sink));
    let builder = builder.placement(Fixed).network_resolver(table);
    // Of no effect beside a layout that is open.
    let security = Security::new()
        .tls(bindery_client::metadata::TlsOptions::new(StoreFile::new("trust", "authority.pem")))
        .sasl(SaslLogin::User { name: "me".into(), password_file: "password".into() });
    let client = builder.metadata_security(security).connect().await.unwrap();
    let writer = client.create_ledger(CreateOptions::new(Quorum::new(2, 2, 2).unwrap())).await.unwrap();
    assert_eq!(writer.append(b"gone").await.unwrap(), EntryId::FIRST);
    writer.close().await.unwrap();
    let quorum = Quorum::new(3, 3, 3).unwrap();
    let refused = client.create_ledger(CreateOptions::new(quorum)).await.unwrap_err();
    assert!(matches!(refused, CreateError::CannotSpread { .. }), "{refused}");
    let candidates = Candidates::default();
    for placement in [
        Box::new(RandomPlacement(SeededRandom::new(1))) as Box<dyn Placement>,
        Box::new(RegionAware::new(SeededRandom::new(1))),
    ] {
        assert_eq!(placement.choose(&candidates, Wanted::new(quorum, &[], &[0])).bookies, []);
    }
    client.close().await;
    cluster.stop().await;
}

/// The point of this file: all this needs no other crate of this project. It cannot show that for anything else.
#[test]
fn no_other_crate_of_this_project_is_named_here() {
    let mark = concat!("bind", "ery_");
    let source = include_str!("newcomer.rs");
    let named: Vec<&str> = source.split(mark).skip(1).collect();
    assert!(named.len() > 3 && named.iter().all(|rest| rest.starts_with("client")), "{named:?}");
}
