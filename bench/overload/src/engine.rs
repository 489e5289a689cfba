//! One thread that drives all measured flows: one epoll, precise due times, no task switches in between.
//!
//! Not tokio, whose timer ticks in milliseconds: half of one would be added to every open-loop latency.

use crate::clock::{MILLI, SECOND, now};
use crate::flow::{Flow, FlowSpec};
use crate::link::Endpoint;
use crate::stats::Phases;
use anyhow::{Result, anyhow};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use serde_json::Value;

/// The flows of a run.
pub struct Engine {
    epoll: OwnedFd,
    bookie: Endpoint,
    begin: u64,
    phases: Phases,
    /// In the order they were added.
    pub flows: Vec<Flow>,
    /// The flow that reads what the other one adds.
    follows: Option<(usize, usize)>,
}

impl Engine {
    /// Phases begin at `begin`.
    pub fn new(bookie: &Endpoint, begin: u64, phases: Phases) -> Result<Engine> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Engine { epoll, bookie: bookie.clone(), begin, phases, flows: Vec::new(), follows: None })
    }

    /// Connects a flow; returns its place.
    pub fn add(&mut self, spec: FlowSpec) -> Result<usize> {
        let index = self.flows.len();
        let flow = Flow::new(spec, index, self.bookie.clone(), &self.epoll, self.begin, self.phases.clone())?;
        self.flows.push(flow);
        Ok(index)
    }

    /// Starts over with the same connections.
    pub fn restart(&mut self, begin: u64, phases: &Phases) {
        (self.begin, self.phases) = (begin, phases.clone());
        self.flows.iter_mut().for_each(|flow| flow.restart(begin, phases.clone()));
    }

    /// Lets `reader` read what `writer` is acknowledged.
    pub fn follow(&mut self, writer: usize, reader: usize) {
        self.flows[writer].acknowledged = Some(Vec::new());
        self.follows = Some((writer, reader));
    }

    /// Runs until the last phase ends and everything is answered or `grace` is over.
    pub fn run(&mut self, grace: u64) -> Result<()> {
        let end = self.phases.last().map_or(0, |(_, end)| *end);
        let mut scratch = vec![0; 256 << 10];
        let mut events: Vec<epoll::Event> = Vec::with_capacity(1024);
        let mut touched = Vec::new();
        let mut next_sweep = 0;
        loop {
            let at = now();
            let live: usize = self.flows.iter().map(Flow::live).sum();
            let is_over = at >= end || self.flows.iter().all(Flow::is_exhausted);
            if is_over && (live == 0 || at >= end.saturating_add(grace)) {
                break;
            }
            for flow in &mut self.flows {
                flow.make_due(at, end, &mut touched);
                touched.dedup();
                for line in touched.drain(..) {
                    flow.pump(line, at, &self.epoll);
                }
            }
            if at >= next_sweep {
                self.flows.iter_mut().for_each(|flow| flow.sweep(at, &self.epoll));
                next_sweep = at + 100 * MILLI;
            }
            let due = self.flows.iter().filter_map(Flow::next_due).chain([next_sweep]).min();
            let wait = due.unwrap_or(next_sweep).saturating_sub(now());
            let wait = Timespec { tv_sec: (wait / SECOND) as i64, tv_nsec: (wait % SECOND) as i64 };
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let (flags, data) = (event.flags, event.data);
                let token = data.u64();
                let (index, line) = ((token >> 32) as usize, token as u32 as usize);
                let flow = &mut self.flows[index];
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    flow.on_readable(line, &mut scratch, now());
                }
                if flags.contains(epoll::EventFlags::OUT) {
                    flow.pump(line, now(), &self.epoll);
                }
            }
            if let Some((writer, reader)) = self.follows {
                let list = self.flows[writer].acknowledged.take().unwrap_or_default();
                let at = now();
                for ids in list {
                    if at < end {
                        self.flows[reader].follow(ids, at);
                    }
                }
                self.flows[writer].acknowledged = Some(Vec::new());
                (0..self.flows[reader].connections())
                    .for_each(|line| self.flows[reader].pump(line, at, &self.epoll));
            }
        }
        let at = now();
        self.flows.iter_mut().filter(|flow| flow.live() > 0).for_each(|flow| flow.give_up(at));
        Ok(())
    }
}

/// Runs engines at once, each on a thread of its own, so that what one has to copy delays nothing in the other.
pub fn run_all(engines: Vec<Engine>, grace: u64) -> Result<Vec<Engine>> {
    let threads: Vec<_> = (engines.into_iter())
        .map(|mut engine| std::thread::spawn(move || engine.run(grace).map(|()| engine)))
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().map_err(|_| anyhow!("an engine's thread panicked"))?)
        .collect()
}

/// The flows of all of them by name, for the result file.
pub fn flows_json(engines: &[Engine]) -> Value {
    let flows = engines.iter().flat_map(|engine| &engine.flows);
    flows.map(|flow| (flow.name().to_owned(), flow.json())).collect::<serde_json::Map<String, Value>>().into()
}
