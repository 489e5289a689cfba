//! A script that is given hosts as arguments and prints a rack for each, as BookKeeper and Hadoop call it
//! (`networkTopologyScriptFileName`).
//!
//! # Invariants
//! 1. A script that fails, hangs, prints too little, too much or nonsense gives an error that says so; no rack is made up.
//! 2. It runs in a process group of its own, which is killed when the time is over and when the caller goes away.
//! 3. It never blocks a thread of the runtime: the pool of blocking calls starts it, and its output is read as from a
//!    socket.
//!
//! # Limits     [`OUTPUT_BYTES_MAX`] of output, [`STDERR_BYTES_MAX`] kept of standard error; as many arguments at once as
//! [`ScriptResolver::arguments_max`]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::{NetworkResolver, Resolution, ResolveError};
use crate::location::Location;

/// How long a script may take.
pub const SCRIPT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Hosts that a script is given at once (`networkTopologyScriptNumberArgs`).
pub const SCRIPT_ARGUMENTS_MAX_DEFAULT: usize = 100;

const OUTPUT_BYTES_MAX: usize = 1 << 20;
const STDERR_BYTES_MAX: usize = 4096;
/// How often to check whether a script that has closed its output has exited.
const EXIT_LOOK: Duration = Duration::from_millis(5);

/// Asks a script.
#[derive(Debug, Clone)]
pub struct ScriptResolver {
    script: PathBuf,
    timeout: Duration,
    arguments_max: usize,
}

impl ScriptResolver {
    /// Runs nothing yet. A path without a slash is searched for in `PATH`.
    pub fn new(script: impl Into<PathBuf>) -> ScriptResolver {
        ScriptResolver {
            script: script.into(),
            timeout: SCRIPT_TIMEOUT_DEFAULT,
            arguments_max: SCRIPT_ARGUMENTS_MAX_DEFAULT,
        }
    }

    /// How long one run may take, 10 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The most hosts that one run of the script is given, 100 by default and never less than one. For more of them it runs several times.
    pub fn arguments_max(mut self, arguments: usize) -> Self {
        self.arguments_max = arguments.max(1);
        self
    }

    async fn run(&self, hosts: &[String]) -> Result<Vec<Option<Location>>, ResolveError> {
        let script = &self.script;
        let cannot_run = |error: &dyn std::fmt::Display| ResolveError::CannotRun {
            script: script.clone(),
            error: error.to_string(),
        };
        let running = {
            let (script, hosts) = (script.clone(), hosts.to_vec());
            tokio::task::spawn_blocking(move || Running::start(&script, &hosts)).await
        };
        let mut running = running.map_err(|error| cannot_run(&error))?.map_err(|error| cannot_run(&error))?;
        let ended = match timeout(self.timeout, running.finish()).await {
            Ok(ended) => ended.map_err(|error| cannot_run(&error))?,
            Err(_) => {
                return Err(ResolveError::TimedOut { script: script.clone(), timeout: self.timeout });
            }
        };
        let Ended { status, output, stderr } = ended;
        if output.len() > OUTPUT_BYTES_MAX {
            return Err(ResolveError::TooMuch { script: script.clone(), bytes_max: OUTPUT_BYTES_MAX });
        }
        if !status.success() {
            let stderr = String::from_utf8_lossy(&stderr).into_owned();
            return Err(ResolveError::Failed { script: script.clone(), status: status.to_string(), stderr });
        }
        let output = String::from_utf8_lossy(&output);
        let words: Vec<&str> = output.split_whitespace().collect();
        if words.len() != hosts.len() {
            let (expected, found) = (hosts.len(), words.len());
            return Err(ResolveError::WrongCount { script: script.clone(), expected, found });
        }
        let locations = words.into_iter().map(|word| Location::new(word).map(Some));
        let invalid = |error| ResolveError::Invalid { script: script.clone(), error };
        locations.collect::<Result<_, _>>().map_err(invalid)
    }
}

impl NetworkResolver for ScriptResolver {
    fn resolve<'a>(&'a self, hosts: &'a [String]) -> Resolution<'a> {
        Box::pin(async move {
            let mut found = Vec::with_capacity(hosts.len());
            for some in hosts.chunks(self.arguments_max) {
                found.extend(self.run(some).await?);
            }
            Ok(found)
        })
    }
}

/// How a script ended, and what it wrote.
struct Ended {
    status: ExitStatus,
    /// One byte longer than the limit if the script wrote more.
    output: Vec<u8>,
    stderr: Vec<u8>,
}

/// A running script. Dropped, it is killed, with all that it started (invariant 2).
struct Running {
    /// `None` once its exit status was collected: its process id may belong to another process then.
    child: Option<Child>,
}

impl Running {
    /// Blocks for as long as starting a process takes.
    fn start(script: &Path, hosts: &[String]) -> io::Result<Running> {
        let mut command = Command::new(script);
        command.args(hosts).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Running { child: Some(command.spawn()?) })
    }

    async fn finish(&mut self) -> io::Result<Ended> {
        let child = self.child.as_mut().expect("it runs");
        let stdout = OwnedFd::from(child.stdout.take().expect("it is piped"));
        let stderr = OwnedFd::from(child.stderr.take().expect("it is piped"));
        let (output, stderr) = tokio::try_join!(
            read(stdout, OUTPUT_BYTES_MAX + 1, true),
            read(stderr, STDERR_BYTES_MAX, false)
        )?;
        loop {
            let child = self.child.as_mut().expect("it runs");
            if output.len() > OUTPUT_BYTES_MAX {
                // It may write for ever.
                self.kill();
            } else if let Some(status) = child.try_wait()? {
                self.child = None;
                return Ok(Ended { status, output, stderr });
            } else {
                sleep(EXIT_LOOK).await;
                continue;
            }
            return Ok(Ended { status: ExitStatus::default(), output, stderr });
        }
    }

    fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // It may have exited meanwhile, which does no harm: its exit status was not collected, so its process id is
        // still its own.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || child.wait())),
            // There is no runtime any more: this process ends soon, and what is left of the script goes with it.
            Err(_) => drop(child.try_wait()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads the first `bytes_max` bytes. With `ends` it stops there, otherwise it reads on and drops the rest, so that the
/// writer never blocks.
async fn read(pipe: OwnedFd, bytes_max: usize, ends: bool) -> io::Result<Vec<u8>> {
    let mut pipe = Receiver::from_owned_fd(pipe)?;
    let mut bytes = Vec::new();
    (&mut pipe).take(bytes_max as u64).read_to_end(&mut bytes).await?;
    if !ends && bytes.len() == bytes_max {
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the files of an operator")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    fn script(body: &str) -> (TempDir, ScriptResolver) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("racks.sh");
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        (dir, ScriptResolver::new(path))
    }

    fn hosts(names: &str) -> Vec<String> {
        names.split(' ').map(Into::into).collect()
    }

    async fn resolve(resolver: &ScriptResolver, names: &str) -> Result<Vec<String>, ResolveError> {
        loop {
            let found = resolver.resolve(&hosts(names)).await;
            match &found {
                // Another test forks while the file is open for writing.
                Err(ResolveError::CannotRun { error, .. }) if error.contains("Text file busy") => {}
                _ => return found.map(|found| found.iter().flatten().map(Location::to_string).collect()),
            }
        }
    }

    #[tokio::test]
    async fn a_script_prints_a_rack_for_each_argument() {
        let (_dir, resolver) = script("for host in \"$@\"; do echo /rack-$host; done");
        assert_eq!(resolve(&resolver, "a b c").await.unwrap(), ["/rack-a", "/rack-b", "/rack-c"]);
        // All at once, and separated by blanks.
        let (_dir, resolver) = script("echo $# >&2; for host in \"$@\"; do printf '/%s ' $#; done");
        let resolver = resolver.arguments_max(2);
        assert_eq!(resolve(&resolver, "a b c").await.unwrap(), ["/2", "/2", "/1"]);
    }

    #[tokio::test]
    async fn a_script_that_fails_says_what_it_said() {
        // Invariant 1.
        let (_dir, resolver) = script("echo /r1; echo no database >&2; exit 3");
        let error = resolve(&resolver, "a").await.unwrap_err();
        assert!(
            matches!(&error, ResolveError::Failed { stderr, .. } if stderr == "no database\n"),
            "{error}"
        );
        assert!(error.to_string().contains("exit status: 3): no database"), "{error}");
        let error = resolve(&ScriptResolver::new("/nowhere/racks.sh"), "a").await.unwrap_err();
        assert!(error.to_string().starts_with("cannot run /nowhere/racks.sh: No such file"), "{error}");
    }

    #[tokio::test]
    async fn a_script_that_prints_too_little_or_nonsense_places_nobody() {
        // Invariant 1.
        let (_dir, resolver) = script("echo /r1");
        let error = resolve(&resolver, "a b").await.unwrap_err();
        assert!(matches!(error, ResolveError::WrongCount { expected: 2, found: 1, .. }), "{error}");
        let (_dir, resolver) = script("echo rack one");
        let error = resolve(&resolver, "a b").await.unwrap_err();
        assert!(matches!(&error, ResolveError::Invalid { error, .. } if error.0 == "rack"), "{error}");
        let (_dir, resolver) = script("while :; do echo /r1; done");
        let error = resolve(&resolver, "a").await.unwrap_err();
        assert!(matches!(error, ResolveError::TooMuch { .. }), "{error}");
        // More on standard error than a pipe holds.
        let (_dir, resolver) = script(
            "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789 >&2; i=$((i+1)); done; echo /r1",
        );
        assert_eq!(resolve(&resolver, "a").await.unwrap(), ["/r1"]);
    }

    #[tokio::test]
    async fn a_script_that_hangs_is_killed_with_all_it_started() {
        // Invariant 2.
        let (dir, resolver) = script("sleep 1000 & echo $! > \"$(dirname \"$0\")/pid\"; wait");
        // Once, to be past a busy file.
        let resolver = resolver.timeout(Duration::from_millis(500));
        let error = resolve(&resolver, "a").await.unwrap_err();
        assert!(matches!(error, ResolveError::TimedOut { .. }), "{error}");
        assert!(error.to_string().ends_with("racks.sh did not end within 500ms and was killed"), "{error}");
        let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
        let status = format!("/proc/{}/status", pid.trim());
        let is_alive = || std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ"));
        while is_alive() {
            sleep(Duration::from_millis(5)).await;
        }
    }
}
