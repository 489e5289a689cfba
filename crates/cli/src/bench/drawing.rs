//! `--plot`: what each measured second brought, as text behind the result or as an SVG file.

use super::args::BenchCommonArgs;
use super::latency::Percentiles;
use crate::exit::Failure;
use crate::live::spark::Glyphs;
use crate::output;
use crate::plot::{self, Fold, Panel, Plot, Scale, Series};
use rustix::termios::tcgetwinsize;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Width where standard output is no terminal.
const COLUMNS: usize = 80;

/// One measured second.
#[derive(Debug, Clone, PartialEq)]
pub struct Second {
    /// Adds or calls that completed.
    pub ops: u64,
    /// Of these.
    pub latency: Percentiles,
}

/// Where the drawing goes.
#[derive(Debug)]
pub enum Target {
    /// Behind the result, on standard output.
    Output,
    /// Into a file.
    File(PlotFile),
}

impl Target {
    /// What `--plot` says, before anything is measured: a file that cannot be written is said at once.
    pub fn open(args: &BenchCommonArgs) -> Result<Option<Target>, Failure> {
        let Some(path) = &args.plot else { return Ok(None) };
        if path.as_os_str() == "-" {
            return match args.json {
                false => Ok(Some(Target::Output)),
                true => Err(Failure::usage(
                    "--plot without a file draws on standard output, where the object of --json goes: name a file, --plot FILE.svg",
                )),
            };
        }
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("svg")) {
            return Err(Failure::usage(format!(
                "--plot {}: it writes SVG, so the name has to end in .svg; --plot without a file draws on standard output",
                path.display()
            )));
        }
        PlotFile::open(path).map(Target::File).map(Some)
    }

    /// Draws.
    pub fn draw(self, plot: &Plot) -> Result<(), Failure> {
        match self {
            Target::Output => {
                let columns = match tcgetwinsize(io::stdout()) {
                    Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
                    _ => COLUMNS,
                };
                output::write_all(format!("\n{}", plot::text(plot, columns, Glyphs::of(false))).as_bytes())
            }
            Target::File(file) => file.write(&plot::svg(plot)),
        }
    }
}

/// A file for a drawing. Its former contents stay until the drawing is made. If none is made, a file that was created for it is removed.
#[derive(Debug)]
pub struct PlotFile {
    path: PathBuf,
    file: File,
    is_to_go: bool,
}

impl PlotFile {
    fn open(path: &Path) -> Result<PlotFile, Failure> {
        let is_new = path.symlink_metadata().is_err();
        let opened = File::options().write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|error| Failure::usage(format!("--plot {}: {error}", path.display())))?;
        Ok(PlotFile { path: path.to_owned(), file, is_to_go: is_new })
    }

    fn write(mut self, text: &str) -> Result<(), Failure> {
        let written = self.file.set_len(0).and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|error| Failure::new(format!("cannot write {}: {error}", self.path.display())))?;
        self.is_to_go = false;
        output::say(format!("the plot is in {}", self.path.display()));
        Ok(())
    }
}

impl Drop for PlotFile {
    fn drop(&mut self) {
        if self.is_to_go {
            // An empty file says nothing wrong.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// The drawing of a run. `what` is counted: adds or calls.
pub fn of_run(
    workload: &str,
    label: &str,
    what: &'static str,
    title: &'static str,
    about: Vec<String>,
    seconds: &[Second],
) -> Plot {
    let latency = |name, of: fn(&Percentiles) -> Option<f64>| Series {
        name,
        values: seconds.iter().map(|second| of(&second.latency)).collect(),
    };
    let label = if label.is_empty() { String::new() } else { format!(": {label}") };
    Plot {
        title: format!("bindery bench {workload}{label}"),
        about,
        panels: vec![
            Panel {
                title,
                scale: Scale::Linear,
                fold: Fold::Mean,
                series: vec![Series {
                    name: what,
                    values: seconds.iter().map(|second| Some(second.ops as f64)).collect(),
                }],
            },
            Panel {
                title: "latency in each second, ms",
                scale: Scale::Log,
                fold: Fold::Max,
                series: vec![
                    latency("p50", |latency| latency.p50_ms),
                    latency("p99", |latency| latency.p99_ms),
                    latency("max", |latency| latency.max_ms),
                ],
            },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(line: &[&str]) -> BenchCommonArgs {
        use crate::bench::args::BenchCommand;
        use crate::command_line::{Cli, Command};
        use clap::Parser;
        let cli = Cli::try_parse_from([&["bindery", "bench", "add"], line].concat()).unwrap();
        let Command::Bench(args) = cli.command else { unreachable!() };
        let BenchCommand::Add(add) = args.command else { unreachable!() };
        add.common
    }

    fn open(line: &[&str]) -> Result<Option<Target>, Failure> {
        Target::open(&common(line))
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said_before_the_run() {
        assert!(matches!(open(&[]), Ok(None)));
        assert!(matches!(open(&["--plot"]), Ok(Some(Target::Output))));
        assert!(matches!(open(&["--plot", "--seconds", "1"]), Ok(Some(Target::Output))));
        let said = |line: &[&str]| open(line).unwrap_err().to_string();
        assert!(said(&["--plot", "--json"]).contains("--plot FILE.svg"), "{}", said(&["--plot", "--json"]));
        assert!(said(&["--plot", "/tmp/a.png"]).contains("has to end in .svg"));
        assert!(said(&["--plot", "/nowhere/a.svg"]).contains("--plot /nowhere/a.svg: No such file"));
    }

    #[test]
    fn what_a_file_held_stays_until_there_is_a_drawing() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old.svg"), dir.path().join("new.svg"));
        let mut longer = File::options().write(true).create_new(true).open(&old).unwrap();
        longer.write_all(&vec![b'x'; 100_000]).unwrap();
        drop((PlotFile::open(&old).unwrap(), PlotFile::open(&new).unwrap()));
        assert_eq!(old.metadata().unwrap().len(), 100_000);
        assert!(!new.exists(), "a run that failed leaves no file");
        for path in [old, new] {
            PlotFile::open(&path).unwrap().write("<svg/>").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), "<svg/>");
        }
    }
}
