//! `powercut mount DIR SOCKET`: a file system in memory (FUSE) that forgets what was not synced.
//! `powercut control SOCKET cut SEED`: now. `powercut control SOCKET stats`: the calls seen.
//! `powercut check DIR SOCKET`: the mount and the kernel do what the model says, seen from a process like the bookie.
//!
//! # Data flow
//! ```text
//! bookie -> kernel -> Mounted -> model::Disk <- control socket <- script: kill -9, cut SEED, start again
//! ```
//!
//! # Invariants
//! 1. The kernel keeps nothing: files are opened with FOPEN_DIRECT_IO and every answer is valid for no time at all. So a
//!    write is here when the call returned, and a read after a cut sees what the cut left.
//! 2. A write with RWF_DSYNC or O_DSYNC arrives with the flag set; it is durable when it is answered.

mod model;

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use model::Disk;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NEVER: Duration = Duration::ZERO;

struct Mounted(Arc<Mutex<Disk>>);

fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(code: i32) -> Errno {
    Errno::from_i32(code)
}

fn attr(disk: &Disk, inode: u64) -> Result<FileAttr, i32> {
    let it = disk.attributes(inode)?;
    Ok(FileAttr {
        ino: INodeNo(inode),
        size: it.len,
        blocks: it.len.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if it.is_dir { FileType::Directory } else { FileType::RegularFile },
        perm: it.mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

fn utf8(name: &OsStr) -> Result<&str, i32> {
    name.to_str().ok_or(libc::EINVAL)
}

fn done(result: Result<(), i32>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(code) => reply.error(errno(code)),
    }
}

impl Mounted {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.0)
    }

    fn make(&self, parent: INodeNo, name: &OsStr, is_dir: bool, mode: u32) -> Result<FileAttr, i32> {
        let mut disk = self.disk();
        let inode = disk.make(parent.0, utf8(name)?, is_dir, (mode & 0o7777) as u16)?;
        attr(&disk, inode)
    }
}

impl Filesystem for Mounted {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut disk = self.disk();
        let found = utf8(name).and_then(|name| disk.lookup(parent.0, name));
        match found.and_then(|inode| attr(&disk, inode)) {
            Ok(attr) => reply.entry(&NEVER, &attr, Generation(0)),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match attr(&self.disk(), ino.0) {
            Ok(attr) => reply.attr(&NEVER, &attr),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut disk = self.disk();
        let mut result = Ok(());
        if let Some(mode) = mode {
            result = disk.set_mode(ino.0, (mode & 0o7777) as u16);
        }
        if let (Ok(()), Some(size)) = (result, size) {
            result = disk.set_len(ino.0, size);
        }
        match result.and_then(|()| attr(&disk, ino.0)) {
            Ok(attr) => reply.attr(&NEVER, &attr),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn mknod(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        match self.make(parent, name, false, mode) {
            Ok(attr) => reply.entry(&NEVER, &attr, Generation(0)),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        match self.make(parent, name, true, mode) {
            Ok(attr) => reply.entry(&NEVER, &attr, Generation(0)),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.make(parent, name, false, mode) {
            Ok(attr) => {
                reply.created(&NEVER, &attr, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO)
            }
            Err(code) => reply.error(errno(code)),
        }
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(utf8(name).and_then(|name| self.disk().remove(parent.0, name, false)), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(utf8(name).and_then(|name| self.disk().remove(parent.0, name, true)), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let names = utf8(name).and_then(|name| Ok((name, utf8(newname)?)));
        done(names.and_then(|(from, to)| self.disk().rename(parent.0, from, newparent.0, to)), reply);
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.disk().read(ino.0, offset, size as usize) {
            Ok(bytes) => reply.data(bytes),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_sync = flags.0 & libc::O_DSYNC != 0;
        match self.disk().write(ino.0, offset, data, is_sync) {
            Ok(()) => reply.written(data.len() as u32),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok(); // a close promises nothing
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        done(self.disk().sync(ino.0), reply);
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        done(self.disk().sync_dir(ino.0), reply);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut disk = self.disk();
        let names = match disk.list(ino.0) {
            Ok(names) => names,
            Err(code) => return reply.error(errno(code)),
        };
        for (index, (name, inode)) in names.into_iter().enumerate().skip(offset as usize) {
            let is_dir = disk.attributes(inode).is_ok_and(|it| it.is_dir);
            let kind = if is_dir { FileType::Directory } else { FileType::RegularFile };
            if reply.add(INodeNo(inode), index as u64 + 1, kind, &name) {
                break;
            }
        }
        reply.ok();
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let mut disk = self.disk();
        let len = disk.attributes(ino.0).map(|it| it.len);
        done(
            len.and_then(
                |len| if offset + length > len { disk.set_len(ino.0, offset + length) } else { Ok(()) },
            ),
            reply,
        );
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = (64 << 30) / 4096;
        reply.statfs(blocks, blocks, blocks, 1 << 20, 1 << 20, 4096, 255, 4096);
    }
}

fn serve(listener: &UnixListener, disk: &Mutex<Disk>) {
    for stream in listener.incoming().map_while(Result::ok) {
        let mut line = String::new();
        if BufReader::new(&stream).read_line(&mut line).is_err() {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["cut", seed] => match seed.parse() {
                Ok(seed) => {
                    let cut = lock(disk).cut(seed);
                    format!("cut: kept={} lost={}", cut.kept, cut.lost)
                }
                Err(_) => "error: the seed is no number".to_owned(),
            },
            ["stats"] => {
                let seen = lock(disk).counters;
                let (writes, sync_writes) = (seen.writes, seen.sync_writes);
                let (syncs, dir_syncs) = (seen.syncs, seen.dir_syncs);
                format!(
                    "stats: writes={writes} sync_writes={sync_writes} syncs={syncs} dir_syncs={dir_syncs}"
                )
            }
            _ => "error: cut SEED, or stats".to_owned(),
        };
        let _ = writeln!(&stream, "{answer}");
    }
}

fn control(socket: &str, command: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    writeln!(stream, "{command}")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}

/// What the bookie's calls become, over many cuts: each must survive always, or not always.
fn check(dir: &Path, socket: &str) -> std::io::Result<bool> {
    let mut is_right = true;
    let open = |name: &str, flags: i32| {
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .custom_flags(flags)
            .open(dir.join(name))
    };
    let sync_dir = || std::fs::File::open(dir)?.sync_all();
    type Case<'a> = (&'a str, bool, &'a dyn Fn(&str) -> std::io::Result<()>);
    let bytes = [9; 8192];
    let cases: [Case<'_>; 5] = [
        ("a write without a sync", false, &|name| {
            open(name, 0)?.write_all_at(&bytes, 0)?;
            sync_dir()
        }),
        ("a write and fdatasync", true, &|name| {
            let file = open(name, 0)?;
            file.write_all_at(&bytes, 0)?;
            file.sync_data()?;
            sync_dir()
        }),
        ("a write with O_DSYNC", true, &|name| {
            open(name, libc::O_DSYNC)?.write_all_at(&bytes, 0)?;
            sync_dir()
        }),
        ("fsync of a file whose directory was not synced", false, &|name| {
            let file = open(name, 0)?;
            file.write_all_at(&bytes, 0)?;
            file.sync_all()
        }),
        ("a rename whose directory was not synced", false, &|name| {
            let other = format!("{name}.new");
            let file = open(&other, 0)?;
            file.write_all_at(&bytes, 0)?;
            file.sync_all()?;
            sync_dir()?;
            std::fs::rename(dir.join(other), dir.join(name))
        }),
    ];
    for (number, (what, must_survive, act)) in cases.into_iter().enumerate() {
        let mut survived = 0;
        for seed in 0..20 {
            let name = format!("check-{number}-{seed}");
            act(&name)?;
            control(socket, &format!("cut {seed}"))?;
            survived += u32::from(std::fs::read(dir.join(&name)).is_ok_and(|found| found == bytes));
        }
        let holds = if must_survive { survived == 20 } else { survived < 20 };
        println!("  {} {what}: survived {survived} of 20 cuts", if holds { "ok" } else { "WRONG" });
        is_right &= holds;
    }
    for found in std::fs::read_dir(dir)? {
        std::fs::remove_file(found?.path())?;
    }
    sync_dir()?;
    Ok(is_right)
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["mount", dir, socket] => {
            let disk = Arc::new(Mutex::new(Disk::default()));
            let listener = UnixListener::bind(socket)?;
            let controlled = disk.clone();
            std::thread::spawn(move || serve(&listener, &controlled));
            let mut config = Config::default();
            config.mount_options = vec![MountOption::FSName("powercut".to_owned())];
            fuser::mount(Mounted(disk), dir, &config)
        }
        ["control", socket, ref command @ ..] => {
            println!("{}", control(socket, &command.join(" "))?);
            Ok(())
        }
        ["check", dir, socket] => std::process::exit(i32::from(!check(Path::new(dir), socket)?)),
        _ => {
            eprintln!(
                "powercut mount DIR SOCKET | control SOCKET cut SEED | control SOCKET stats | check DIR SOCKET"
            );
            std::process::exit(2);
        }
    }
}
