//! The log: to standard error, as text or JSON lines. `RUST_LOG` selects, "info" by default.

use crate::args::LogFormat;
use crate::exit::Failure;
use crate::live::has_colours;
use crate::output;
use crate::status_line::BesideBars;
use serde_json::json;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::EnvFilter;

/// Set once the log of this process is one of lines of JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Says on standard error why the process ends: in the form of its log, a line for each fault.
pub fn say_failure(failure: &Failure) {
    for fault in failure.faults() {
        match IS_JSON.load(Ordering::Relaxed) {
            true if tracing::enabled!(tracing::Level::ERROR) => {
                tracing::error!(exit_code = failure.code, "{fault}");
            }
            true => say_unfiltered(json!({ "message": fault, "exit_code": failure.code })),
            false => output::say(format!("bindery: {fault}")),
        }
    }
}

/// A line of the log whatever `RUST_LOG` selects: it does not hide why a process ends.
fn say_unfiltered(fields: serde_json::Value) {
    output::say(json!({ "level": "ERROR", "fields": fields, "target": module_path!() }));
}

/// A panic as a line of the log, with a backtrace if `RUST_BACKTRACE` asks for one.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let message =
        text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    match tracing::enabled!(tracing::Level::ERROR) {
        true => tracing::error!(location, thread, backtrace, "panicked, which is a bug: {message}"),
        false => say_unfiltered(json!({
            "message": format!("panicked, which is a bug: {message}"),
            "location": location,
            "thread": thread,
            "backtrace": backtrace,
        })),
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
        .with_writer(|| BesideBars)
        .log_internal_errors(false);
    let installed = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal() && has_colours()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    IS_JSON.store(format == LogFormat::Json && installed.is_ok(), Ordering::Relaxed);
    if IS_JSON.load(Ordering::Relaxed) {
        std::panic::set_hook(Box::new(log_panic));
    }
    if let Err(error) = installed {
        output::say(format!("bindery: log: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_is_one_line_of_the_log() {
        let sink = Sink::default();
        let writer = sink.clone();
        let log = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
        // Other tests of this process may fail meanwhile, and say so in the usual way.
        let before = Arc::new(std::panic::take_hook());
        let (here, of_others) = (std::thread::current().id(), before.clone());
        std::panic::set_hook(Box::new(move |panic| match std::thread::current().id() == here {
            true => log_panic(panic),
            false => of_others(panic),
        }));
        let outcome =
            tracing::subscriber::with_default(log, || std::panic::catch_unwind(|| panic!("two\nlines")));
        std::panic::set_hook(Box::new(move |panic| before(panic)));
        assert!(outcome.is_err());
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        let fields = &line["fields"];
        assert_eq!(line["level"], "ERROR");
        assert_eq!(fields["message"], "panicked, which is a bug: two\nlines");
        assert!(fields["location"].as_str().unwrap().contains("logging.rs"), "{line}");
    }
}
