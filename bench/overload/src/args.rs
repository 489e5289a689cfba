//! `--name value` arguments, and which bookie they are about.

use crate::link::{self, Endpoint};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::str::FromStr;

/// The command line behind the scenario's name. [`Args::finish`] refuses arguments that no scenario read.
pub struct Args {
    values: BTreeMap<String, String>,
    /// Words that do not start with `--`.
    pub words: Vec<String>,
}

impl Args {
    /// Reads pairs; a name without a value has the value `true`.
    pub fn parse(args: impl Iterator<Item = String>) -> Result<Args> {
        let (mut values, mut words) = (BTreeMap::new(), Vec::new());
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let Some(name) = arg.strip_prefix("--") else {
                words.push(arg);
                continue;
            };
            let value = args.next_if(|next| !next.starts_with("--")).unwrap_or_else(|| "true".to_owned());
            if values.insert(name.to_owned(), value).is_some() {
                bail!("--{name} stands twice");
            }
        }
        Ok(Args { values, words })
    }

    /// The value of `name`, or `default`.
    pub fn or<T: FromStr>(&mut self, name: &str, default: T) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        match self.values.remove(name) {
            None => Ok(default),
            Some(text) => text.parse().with_context(|| format!("--{name} {text}")),
        }
    }

    /// The text of `name`, if it was given.
    pub fn text(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)
    }

    /// Refuses whatever is left.
    pub fn finish(self) -> Result<()> {
        match self.values.keys().next() {
            None => Ok(()),
            Some(name) => bail!("--{name} is no option of this scenario"),
        }
    }
}

/// The bookie under test.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where it serves.
    pub bookie: Endpoint,
    /// Its process, on this machine.
    pub pid: u32,
    /// Its HTTP port.
    pub admin: Option<SocketAddr>,
    /// Its name in the report.
    pub label: String,
    /// A Java bookie: no pools to look at, but stacks.
    pub is_java: bool,
}

impl Target {
    /// `--bookie HOST:PORT --pid PID [--admin HOST:PORT] --label NAME [--tls-ca FILE]`; a label that starts with "java" is a Java bookie.
    pub fn take(args: &mut Args) -> Result<Target> {
        let bookie = args.text("bookie").context("--bookie HOST:PORT is needed")?;
        let pid = args.text("pid").context("--pid PID is needed")?;
        let label = args.text("label").context("--label NAME is needed")?;
        let address = bookie.parse().with_context(|| format!("--bookie {bookie}"))?;
        let tls = args.text("tls-ca").map(|file| link::trusting(&file)).transpose()?;
        Ok(Target {
            bookie: Endpoint { address, tls },
            pid: pid.parse().with_context(|| format!("--pid {pid}"))?,
            admin: args.text("admin").map(|text| text.parse()).transpose().context("--admin")?,
            is_java: label.starts_with("java"),
            label,
        })
    }
}
