//! The log: to standard error, as text or JSON lines. `RUST_LOG` selects, "info" by default.

use crate::args::LogFormat;
use crate::exit::Failure;
use crate::live::has_colours;
use crate::output;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::EnvFilter;

/// Set once the log of this process is one of lines of JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Says on standard error why the process ends: in the form of its log.
pub fn say_failure(failure: &Failure) {
    if IS_JSON.load(Ordering::Relaxed) && tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!(exit_code = failure.code, "{failure}");
    } else {
        output::say(format!("bindery: {failure}"));
    }
}

/// Installs the log of this process. A second call changes nothing.
pub fn start(format: LogFormat) {
    start_at(format, "info");
}

/// The log of a command: its one message says what failed, so only `--verbose` shows more. The exceptions are warnings about
/// commands that succeed: entries on other racks than requested, a wait for bookies, TLS that checks no names.
pub fn start_for_command(verbose: u8) {
    let level = match verbose {
        0 => "off,bindery_client::placement=warn,bindery_client::patience=warn,bindery_client::tls=warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    start_at(LogFormat::Text, level);
}

/// The log of this process from a level on, unless `RUST_LOG` says otherwise.
pub fn start_at(format: LogFormat, level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    // A line that cannot be written is lost: saying so there too would panic, which ends the process.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let installed = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal() && has_colours()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    IS_JSON.store(format == LogFormat::Json && installed.is_ok(), Ordering::Relaxed);
    if let Err(error) = installed {
        output::say(format!("bindery: log: {error}"));
    }
}
