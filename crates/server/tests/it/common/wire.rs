//! The listener and its connections in front of a real engine, without the rest of a bookie, and a client of raw frames.

use super::PATIENCE;
use super::frames::{OwnedV2, framed, framed_v3};
use bindery_engine::{EngineConfig, EngineThreads, Machine};
use bindery_io::{Clock, Disk, RealDisk, SystemClock, SystemRandom, net};
use bindery_server::auth::Auth;
use bindery_server::connection::{Completion, Registry, SliceTurns};
use bindery_server::io_pool::IoPools;
use bindery_server::latch::Latch;
use bindery_server::limits::Limits;
use bindery_server::listener::Listener;
use bindery_server::log_limit::LogLimit;
use bindery_server::memory::{MemoryPlan, Pools};
use bindery_server::metrics::Metrics;
use bindery_server::shared::{BufferSlab, Shared};
use bindery_server::tier::Tier;
use bindery_server::tls::Tls;
use bindery_server::volumes::Volumes;
use bindery_wire::frame::{self, Split};
use bindery_wire::v3::{self, Operation, proto};
use bindery_wire::{FrameLimit, v2};
use bytes::{Buf, Bytes, BytesMut};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// Connections that are served.
pub struct Bookie {
    pub address: SocketAddr,
    pub shared: Arc<Shared>,
    stop: Arc<Latch>,
    running: JoinHandle<()>,
    engine: EngineThreads,
    _dir: tempfile::TempDir,
}

/// The kernel begins to stamp what it receives a moment after the first socket of the machine wants that; on a busy one a
/// request may come before, and would count as young. Waits for it, once, and keeps a socket that wants it.
fn await_stamps() {
    static KEPT: OnceLock<std::net::TcpStream> = OnceLock::new();
    KEPT.get_or_init(|| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        net::set_stamps(&listener, true).unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        loop {
            peer.write_all(b"?").unwrap();
            if net::recv_stamped(&socket, &mut [0]).unwrap().1.is_some() {
                return socket;
            }
        }
    });
}

/// A clock that a test can put forward.
pub struct SteeredClock {
    inner: SystemClock,
    ahead_ns: AtomicU64,
}

impl SteeredClock {
    pub fn new() -> Arc<SteeredClock> {
        Arc::new(SteeredClock { inner: SystemClock::new(), ahead_ns: AtomicU64::new(0) })
    }

    pub fn put_forward(&self, by: Duration) {
        self.ahead_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for SteeredClock {
    fn monotonic_ns(&self) -> u64 {
        self.inner.monotonic_ns() + self.ahead_ns.load(Ordering::SeqCst)
    }

    fn wall_ms(&self) -> i64 {
        self.inner.wall_ms()
    }
}

/// Serves on loopback, from a temporary directory, with 256 MiB.
pub async fn start(limits: Limits) -> Bookie {
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    start_with(limits, plan).await
}

/// As [`start`], with pools of these sizes.
pub async fn start_with(limits: Limits, plan: MemoryPlan) -> Bookie {
    start_on(limits, plan, Arc::new(RealDisk::new())).await
}

/// As [`start_with`], on this disk.
pub async fn start_on(limits: Limits, plan: MemoryPlan, disk: Arc<dyn Disk>) -> Bookie {
    start_at(limits, plan, disk, Arc::new(SystemClock::new())).await
}

/// As [`start_on`], by this clock.
pub async fn start_at(
    limits: Limits,
    plan: MemoryPlan,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
) -> Bookie {
    start_as(limits, plan, disk, clock, |_| ()).await
}

/// As [`start_at`], with this engine.
pub async fn start_as(
    limits: Limits,
    plan: MemoryPlan,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    change: impl FnOnce(&mut EngineConfig),
) -> Bookie {
    start_tiered(limits, plan, disk, clock, change, None).await
}

/// As [`start_as`], with object storage.
pub async fn start_tiered(
    limits: Limits,
    plan: MemoryPlan,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    change: impl FnOnce(&mut EngineConfig),
    tier: Option<Arc<Tier>>,
) -> Bookie {
    start_whole(limits, plan, disk, clock, change, Parts { tier, ..Parts::default() }).await
}

/// As [`start_with`]; speaks TLS when asked to.
pub async fn start_tls(limits: Limits, plan: MemoryPlan, tls: Tls) -> Bookie {
    let (disk, clock) = (Arc::new(RealDisk::new()), Arc::new(SystemClock::new()));
    start_whole(limits, plan, disk, clock, |_| (), Parts { tls: Some(Arc::new(tls)), ..Parts::default() })
        .await
}

/// As [`start`]; wants to know who clients are, and speaks TLS if it has it.
pub async fn start_auth(limits: Limits, tls: Option<Tls>, auth: Auth) -> Bookie {
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    start_auth_with(limits, plan, tls, auth).await
}

/// As [`start_auth`], with pools of these sizes.
pub async fn start_auth_with(limits: Limits, plan: MemoryPlan, tls: Option<Tls>, auth: Auth) -> Bookie {
    let (disk, clock) = (Arc::new(RealDisk::new()), Arc::new(SystemClock::new()));
    let parts = Parts { tier: None, tls: tls.map(Arc::new), auth: Some(Arc::new(auth)) };
    start_whole(limits, plan, disk, clock, |_| (), parts).await
}

/// Optional parts of a bookie.
#[derive(Default)]
struct Parts {
    tier: Option<Arc<Tier>>,
    tls: Option<Arc<Tls>>,
    auth: Option<Arc<Auth>>,
}

async fn start_whole(
    limits: Limits,
    plan: MemoryPlan,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    change: impl FnOnce(&mut EngineConfig),
    Parts { tier, tls, auth }: Parts,
) -> Bookie {
    await_stamps();
    let dir = tempfile::tempdir().unwrap();
    let mut config = EngineConfig {
        journal_dirs: vec![dir.path().join("journal")],
        ledger_dirs: vec![dir.path().join("ledgers")],
        shard_count: 2,
        write_pool_bytes: plan.write,
        entry_bytes_max: limits.frame.entry_size_bytes_max(),
        journal_file_bytes: 16 << 20,
        journal_files_preallocated: 0,
        group_bytes_max: 4 << 20,
        ..EngineConfig::default()
    };
    change(&mut config);
    let machine = Machine::open(config, disk.clone(), clock.clone(), Arc::new(SystemRandom)).unwrap();
    let pools = Pools::new(&plan);
    let shared = Arc::new(Shared {
        parked_adds: Arc::default(),
        tier,
        tls,
        auth,
        tenants: None,
        tier_log: parking_lot::Mutex::new(LogLimit::new(Duration::from_secs(10))),
        long_polls: Default::default(),
        list_log: Default::default(),
        frame_logs: Shared::frame_logs(),
        engine: machine.engine.clone(),
        io: Arc::new(
            IoPools::start(machine.engine.directory_count(), 2, pools.loads(), clock.clone()).unwrap(),
        ),
        clock,
        pools,
        metrics: Metrics::new(machine.engine.journal_count()),
        pressure: Arc::default(),
        connections: Registry::default(),
        bulk: SliceTurns::new(1),
        buffers: BufferSlab::new(limits.read_buffer_bytes),
        volumes: Volumes::new(disk.clone(), vec![dir.path().to_owned()]),
        limits,
    });
    let engine = machine.start(disk, Arc::new(Completion::new(shared.clone())));
    let listener = Listener::new(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    let address = listener.address().unwrap();
    let stop = Arc::new(Latch::default());
    let running = tokio::spawn({
        let (shared, stop) = (shared.clone(), stop.clone());
        async move { listener.run(shared, &stop, &|_| ()).await }
    });
    Bookie { address, shared, stop, running, engine, _dir: dir }
}

impl Bookie {
    /// Stops in order and checks that nothing is held any more (IB20).
    pub async fn stop(self) {
        self.stop.set();
        tokio::time::timeout(PATIENCE, self.running).await.unwrap().unwrap();
        let shared = self.shared;
        tokio::task::spawn_blocking(move || {
            shared.io.stop();
            self.engine.stop().unwrap();
            for (name, gauge) in shared.pools.gauges() {
                assert_eq!((gauge.used, gauge.waiting), (0, 0), "pool {name}");
            }
            assert_eq!(shared.metrics.connections.get(), 0);
            assert_eq!(shared.metrics.tls_connections.get(), 0);
            assert_eq!(shared.metrics.adds_in_progress.get(), 0);
            assert_eq!(shared.metrics.long_polls_parked.get(), 0);
        })
        .await
        .unwrap();
    }
}

/// The payload of the next frame, `None` when the bookie closed the connection.
async fn next_frame(socket: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> Option<Bytes> {
    loop {
        match frame::split(buffer, FrameLimit::DEFAULT).unwrap() {
            Split::Frame(payload) => {
                buffer.advance(payload.start);
                return Some(buffer.split_to(payload.len()).freeze());
            }
            Split::Incomplete { .. } => {
                let read = tokio::time::timeout(PATIENCE, socket.read_buf(buffer));
                match read.await.expect("an answer in time") {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        }
    }
}

/// A connection of a peer that sends whatever it is told to. Closed when it is dropped.
pub struct Client {
    reading: Box<dyn AsyncRead + Send + Unpin>,
    writing: Arc<Mutex<Box<dyn AsyncWrite + Send + Unpin>>>,
    sending: JoinSet<()>,
    buffer: BytesMut,
}

impl Client {
    pub async fn new(bookie: &Bookie) -> Client {
        Client::of(TcpStream::connect(bookie.address).await.unwrap())
    }

    /// A peer whose kernel takes as little as it can be told to.
    pub async fn deaf(bookie: &Bookie) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Client::of(socket.connect(bookie.address).await.unwrap())
    }

    /// A peer on this connection.
    pub fn of(socket: TcpStream) -> Client {
        let (reading, writing) = socket.into_split();
        Client::of_halves(Box::new(reading), Box::new(writing))
    }

    fn of_halves(
        reading: Box<dyn AsyncRead + Send + Unpin>,
        writing: Box<dyn AsyncWrite + Send + Unpin>,
    ) -> Client {
        let writing = Arc::new(Mutex::new(writing));
        Client { reading, writing, sending: JoinSet::new(), buffer: BytesMut::new() }
    }

    /// A peer that began TLS as BookKeeper's clients do.
    pub async fn tls(bookie: &Bookie, config: Arc<ClientConfig>) -> std::io::Result<Client> {
        Client::tls_on(TcpStream::connect(bookie.address).await?, config).await
    }

    /// The same on this connection.
    pub async fn tls_on(socket: TcpStream, config: Arc<ClientConfig>) -> std::io::Result<Client> {
        Client::tls_behind(socket, config, &[&framed_v3(1, Operation::StartTls)]).await
    }

    /// The same, with START_TLS, and what the client sends behind it at once, in these pieces.
    pub async fn tls_behind(
        mut socket: TcpStream,
        config: Arc<ClientConfig>,
        pieces: &[&[u8]],
    ) -> std::io::Result<Client> {
        for piece in pieces {
            socket.write_all(piece).await?;
            tokio::task::yield_now().await;
        }
        let answer = next_frame(&mut socket, &mut BytesMut::new()).await.expect("an answer");
        let answer = v3::decode_response(answer).unwrap();
        assert_eq!((answer.status, answer.start_tls_response.is_some()), (0, true), "START_TLS");
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(config).connect(name, socket).await?;
        let (reading, writing) = tokio::io::split(stream);
        Ok(Client::of_halves(Box::new(reading), Box::new(writing)))
    }

    /// A peer that begins with TLS, without START_TLS.
    pub async fn tls_at_once(bookie: &Bookie, config: Arc<ClientConfig>) -> std::io::Result<Client> {
        let socket = TcpStream::connect(bookie.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(config).connect(name, socket).await?;
        let (reading, writing) = tokio::io::split(stream);
        Ok(Client::of_halves(Box::new(reading), Box::new(writing)))
    }

    /// A peer whose kernel takes as little as it can be told to, over TLS.
    pub async fn deaf_tls(bookie: &Bookie, config: Arc<ClientConfig>) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Client::tls_on(socket.connect(bookie.address).await.unwrap(), config).await.unwrap()
    }

    /// Tells the bookie that nothing follows.
    pub async fn end(&mut self) {
        let _ = self.writing.lock().await.shutdown().await;
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        let mut writing = self.writing.lock().await;
        let sent = async {
            writing.write_all(bytes).await?;
            writing.flush().await
        };
        tokio::time::timeout(PATIENCE, sent).await.unwrap().unwrap();
    }

    /// Sends all of that while others things are done, as far as the bookie takes it.
    pub fn flood(&mut self, bytes: BytesMut) {
        let writing = self.writing.clone();
        self.sending.spawn(async move { drop(writing.lock().await.write_all(&bytes).await) });
    }

    /// The payload of the next frame, `None` when the bookie closed the connection.
    pub async fn next(&mut self) -> Option<Bytes> {
        next_frame(&mut self.reading, &mut self.buffer).await
    }

    /// Some bytes that are no frames; `None` when the bookie closed the connection.
    pub async fn next_raw(&mut self) -> Option<Bytes> {
        self.buffer.clear();
        let read = tokio::time::timeout(PATIENCE, self.reading.read_buf(&mut self.buffer)).await.unwrap();
        read.ok().filter(|read| *read > 0).map(|_| self.buffer.split().freeze())
    }

    pub async fn v2(&mut self, request: v2::Request<'_>) -> OwnedV2 {
        self.send(&framed(request)).await;
        self.next_v2().await
    }

    pub async fn next_v2(&mut self) -> OwnedV2 {
        self.try_next_v2().await.expect("an answer")
    }

    pub async fn try_next_v2(&mut self) -> Option<OwnedV2> {
        self.next().await.map(|payload| OwnedV2::of(&payload))
    }

    pub async fn v3(&mut self, txn_id: u64, operation: Operation) -> proto::Response {
        self.send(&framed_v3(txn_id, operation)).await;
        self.next_v3().await
    }

    pub async fn next_v3(&mut self) -> proto::Response {
        v3::decode_response(self.next().await.expect("an answer")).unwrap()
    }
}
