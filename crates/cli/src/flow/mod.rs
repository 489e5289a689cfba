//! `bindery flow`: who holds which bytes of a running bookie, and who waits for what, again and again.
//!
//! # Data flow
//! ```text
//! admin port (named, or registered: admin_find) -> admin_http -> FlowView (two of them: rates) -> render -> standard output, or screen <- keys
//! ```

pub mod args;
mod render;

use crate::admin_find;
use crate::admin_http::{self, Address, Words};
use crate::exit::Failure;
use crate::live::spark::Glyphs;
use crate::live::{Event, Events, Key, Screen, has_colours};
use crate::output;
use crate::runtime;
use bindery_server::flow_view::{CONNECTIONS_MAX, FlowView, Sort};

use args::FlowArgs;
use render::{Charts, Form, Trouble};
use std::time::Duration;

/// Where the view is.
const PATH: &str = "/api/v1/bookie/flow";
/// The wording of errors.
pub const WORDS: Words = Words {
    command: "bindery flow",
    whose: "bookie",
    nobody: "nobody listens there. A bookie has an admin port with --admin IP:PORT or httpServerEnabled=true, a \
             standalone's is --admin-port; name it with bindery flow --admin http://HOST:PORT",
    missing: "has no flow view: it is not a bindery bookie, or one of an older version",
    starting: "belongs to a bookie that is still starting: try again when /api/v1/bookie/is_ready says OK",
};

/// Lines above the connections and below them, roughly: only as many connections as fit between are requested.
const FRAME_LINES: usize = 16;

/// Runs the command.
pub fn run(args: &FlowArgs) -> Result<(), Failure> {
    let interval = Duration::from_secs_f64(args.interval.clamp(0.1, 3600.0));
    runtime::single()?.block_on(async {
        let source = Source {
            address: admin_find::of_bookie(&args.admin, &WORDS).await?,
            sort: args.sort,
            most: args.top.map_or(CONNECTIONS_MAX, |top| top.min(CONNECTIONS_MAX)),
        };
        if args.json {
            let mut text = admin_http::ask(&source.address, "GET", &source.path(), &WORDS).await?;
            text.push(b'\n');
            return output::write_all(&text);
        }
        if args.once || !Screen::is_possible() {
            return once(&source, args.top, interval).await;
        }
        live(source, args.top, interval, Glyphs::of(args.draw.ascii)).await
    })
}

/// The request to the admin port.
struct Source {
    address: Address,
    sort: Sort,
    most: usize,
}

impl Source {
    fn path(&self) -> String {
        format!("{PATH}?sort={}&limit={}", self.sort.name(), self.most)
    }

    async fn fetch(&self) -> Result<FlowView, Failure> {
        admin_http::ask_json(&self.address, "GET", &self.path(), &WORDS).await
    }
}

/// Two looks, for rates, and one table.
async fn once(source: &Source, top: Option<usize>, interval: Duration) -> Result<(), Failure> {
    let before = source.fetch().await?;
    tokio::time::sleep(interval).await;
    let now = source.fetch().await?;
    let form = Form { rows: Some(top.unwrap_or(50)), ..Form::default() };
    output::write_text(&render::render(&source.address.to_string(), &now, Some(&before), &form))
}

async fn live(
    mut source: Source,
    top: Option<usize>,
    interval: Duration,
    glyphs: Glyphs,
) -> Result<(), Failure> {
    // Whatever is wrong with the address is said before the screen changes.
    let mut now = source.fetch().await?;
    let mut charts = Charts::default();
    let (mut before, mut trouble, mut answered_at) = (None, None, tokio::time::Instant::now());
    let mut events = Events::new()?;
    let mut screen = Screen::enter()?;
    loop {
        let (columns, lines) = screen.size();
        let lines = usize::from(lines);
        let charts_shown = Charts::shown(lines);
        let form = Form {
            rows: Some(
                top.unwrap_or(usize::MAX).min(lines.saturating_sub(FRAME_LINES + charts_shown).max(1)),
            ),
            columns: Some(usize::from(columns)),
            is_live: true,
            has_colours: has_colours(),
            trouble: trouble.clone(),
            charts: charts.lines(charts_shown, usize::from(columns), glyphs),
        };
        let text = render::render(&source.address.to_string(), &now, before.as_ref(), &form);
        screen.draw_page(&glyphs.page(text))?;
        match events.next(&mut screen, interval).await {
            Event::Quit | Event::Key(Key::Quit) => return Ok(()),
            Event::Resized => continue,
            Event::Key(Key::Sort) => source.sort = source.sort.next(),
            Event::Key(Key::Other) | Event::Time => {}
        }
        match source.fetch().await {
            Ok(view) => {
                charts.look(&view, &now);
                before = Some(std::mem::replace(&mut now, view));
                (trouble, answered_at) = (None, tokio::time::Instant::now());
            }
            // The bookie may come back.
            Err(failure) => {
                let age_ms = u64::try_from(answered_at.elapsed().as_millis()).unwrap_or(u64::MAX);
                charts.miss();
                trouble = Some(Trouble { age_ms, why: failure.to_string() });
            }
        }
    }
}
