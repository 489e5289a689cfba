//! Sparklines: the last values of a number as a row of small bars.
//!
//! # Invariants
//! 1. A track holds [`VALUES_MAX`] values at most, the oldest goes first.
//! 2. A look that brought nothing is a gap. It is never drawn as a value.

use std::collections::VecDeque;

/// More than a wide terminal shows.
const VALUES_MAX: usize = 240;
/// The widest row: a longer one says no more.
const WIDTH_MAX: usize = 60;
/// A shorter row says nothing.
const WIDTH_MIN: usize = 8;

/// The characters that bars are drawn with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Glyphs {
    /// `▁▂▃▄▅▆▇█`.
    #[default]
    Blocks,
    /// `_.-:=+*#`, for terminals that know no others.
    Ascii,
}

impl Glyphs {
    /// ASCII if `is_ascii`, or if the locale is not a UTF-8 one.
    pub fn of(is_ascii: bool) -> Glyphs {
        // The first that is set counts (POSIX, Environment Variables).
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        match is_ascii || !is_utf8(locale.as_deref().unwrap_or_default()) {
            true => Glyphs::Ascii,
            false => Glyphs::Blocks,
        }
    }

    fn levels(self) -> [char; 8] {
        match self {
            Glyphs::Blocks => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            Glyphs::Ascii => ['_', '.', '-', ':', '=', '+', '*', '#'],
        }
    }

    fn gap(self) -> char {
        match self {
            Glyphs::Blocks => '·',
            Glyphs::Ascii => ' ',
        }
    }

    /// A page without the one sign of ours that is no ASCII.
    pub fn page(self, text: String) -> String {
        match self {
            Glyphs::Blocks => text,
            Glyphs::Ascii => text.replace('…', "~"),
        }
    }
}

fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The last values of one number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Track(VecDeque<Option<f64>>);

impl Track {
    /// What a look brought.
    pub fn push(&mut self, value: Option<f64>) {
        if self.0.len() == VALUES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(value.filter(|value| value.is_finite()));
    }

    /// The last value, if the last look brought one.
    pub fn now(&self) -> Option<f64> {
        self.0.back().copied().flatten()
    }

    /// The highest of the last so many values.
    pub fn highest(&self, count: usize) -> Option<f64> {
        self.0.iter().rev().take(count).flatten().copied().reduce(f64::max)
    }

    /// The last values from zero to the highest of them, the newest at the right; as wide as there are some.
    pub fn bars(&self, width: usize, glyphs: Glyphs) -> String {
        let highest = self.highest(width).unwrap_or(0.0);
        let levels = glyphs.levels();
        let bar = |value: &Option<f64>| match value {
            None => glyphs.gap(),
            // Zero alone has the lowest bar.
            Some(value) if *value <= 0.0 || highest <= 0.0 => levels[0],
            Some(value) => levels[((value / highest * 7.0).ceil() as usize).clamp(1, 7)],
        };
        self.0.iter().skip(self.0.len().saturating_sub(width)).map(bar).collect()
    }
}

/// One row: its name, a chart of its last values, the latest value, and the highest one shown.
pub struct Row<'a> {
    /// Its name, as shown.
    pub name: &'static str,
    /// Its values.
    pub track: &'a Track,
    /// A value in words.
    pub words: fn(f64) -> String,
}

/// Rows, one below the other; no wider than `width`.
pub fn rows(rows: &[Row<'_>], width: usize, glyphs: Glyphs) -> Vec<String> {
    let text = |value: Option<f64>, words: fn(f64) -> String| value.map_or("-".to_owned(), words);
    let now: Vec<String> = rows.iter().map(|row| text(row.track.now(), row.words)).collect();
    let of = |texts: &[String]| texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let name_width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    // Values come and go: the bars stay where they are.
    let now_width = of(&now).max(10);
    let frame = name_width + now_width + 4;
    let most_width = "most 1,000,000/s".len() + 2;
    let has_most = width >= frame + WIDTH_MIN + most_width;
    let room = width.saturating_sub(frame + if has_most { most_width } else { 0 }).min(WIDTH_MAX);
    rows.iter()
        .zip(now)
        .map(|(row, now)| {
            let mut line = format!("{:<name_width$}  {now:>now_width$}", row.name);
            if room >= WIDTH_MIN {
                line += &format!("  {:<room$}", row.track.bars(room, glyphs));
            }
            if has_most {
                line += &format!("  most {}", text(row.track.highest(room), row.words));
            }
            line.trim_end().chars().take(width).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(values: &[f64]) -> Track {
        let mut track = Track::default();
        values.iter().for_each(|value| track.push((*value >= 0.0).then_some(*value)));
        track
    }

    #[test]
    fn bars_go_from_zero_to_the_highest_that_is_shown() {
        let values = track(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(values.bars(8, Glyphs::Blocks), "▁▂▃▄▅▆▇█");
        assert_eq!(values.bars(8, Glyphs::Ascii), "_.-:=+*#");
        assert_eq!(values.bars(3, Glyphs::Blocks), "▆▇█", "the newest");
        assert_eq!(track(&[0.0, 0.0]).bars(8, Glyphs::Blocks), "▁▁");
        assert_eq!(track(&[1000.0, 1.0]).bars(8, Glyphs::Blocks), "█▂", "a little is not nothing");
        assert_eq!(track(&[5.0, -1.0, 5.0]).bars(8, Glyphs::Blocks), "█·█", "invariant 2");
        assert_eq!(track(&[5.0, -1.0]).now(), None, "invariant 2");
        let mut long = Track::default();
        (0..10_000).for_each(|value| long.push(Some(f64::from(value))));
        assert_eq!(long.bars(usize::MAX, Glyphs::Blocks).chars().count(), VALUES_MAX, "invariant 1");
        long.push(Some(f64::NAN));
        assert_eq!(long.now(), None);
    }

    #[test]
    fn rows_lose_the_highest_first_and_then_the_bars() {
        let (adds, held) = (track(&[10.0, 20.0, 30.0, 40.0, 40.0, 30.0, 20.0, 10.0]), track(&[]));
        let words = |value: f64| format!("{value:.0}/s");
        let all = [Row { name: "adds", track: &adds, words }, Row { name: "stalled", track: &held, words }];
        let drawn = |width| rows(&all, width, Glyphs::Blocks);
        let bars = "▃▅▇██▇▅▃";
        assert_eq!(
            drawn(80),
            [
                format!("adds           10/s  {bars:<41}  most 40/s"),
                format!("stalled           -  {:<41}  most -", "")
            ]
        );
        assert_eq!(drawn(40), ["adds           10/s  ▃▅▇██▇▅▃", "stalled           -"]);
        assert_eq!(drawn(24), ["adds           10/s", "stalled           -"]);
        for width in 0..100 {
            assert!(drawn(width).iter().all(|line| line.chars().count() <= width), "{width}");
        }
    }

    #[test]
    fn blocks_are_for_locales_of_utf_8() {
        assert!(is_utf8("en_US.UTF-8") && is_utf8("C.utf8"));
        assert!(!is_utf8("C") && !is_utf8("") && !is_utf8("de_DE.ISO-8859-1"));
        assert_eq!(Glyphs::of(true), Glyphs::Ascii);
        assert_eq!(Glyphs::Ascii.page("took…".to_owned()), "took~");
    }
}
