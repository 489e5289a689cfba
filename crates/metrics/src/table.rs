//! Rows: the name of a number, its meaning, and the place where it is read.

use crate::about::{About, Kind};
use crate::exposition::{Exposition, Series};
use crate::{Counter, Gauge, Log2Histogram, Summary, SummarySnapshot};

/// Reads a number out of its source.
enum Read<S: 'static> {
    Count(fn(&S) -> u64),
    Signed(fn(&S) -> i64),
    Is(fn(&S) -> bool),
    Summary(fn(&S, u64) -> SummarySnapshot),
    Series(fn(&S, &mut Series<'_>)),
}

/// A number of an `S`, or some of them that have one name and different labels.
pub struct Row<S: 'static> {
    about: About,
    read: Read<S>,
}

impl<S: 'static> Row<S> {
    const fn new(kind: Kind, name: &'static str, help: &'static str, read: Read<S>) -> Row<S> {
        Row { about: About { name, kind, label: "", labels: &[], help, is_stand_in: false }, read }
    }

    /// A number that only grows.
    pub const fn counter(name: &'static str, help: &'static str, read: fn(&S) -> u64) -> Row<S> {
        Row::new(Kind::Counter, name, help, Read::Count(read))
    }

    /// A number that goes up and down.
    pub const fn gauge(name: &'static str, help: &'static str, read: fn(&S) -> u64) -> Row<S> {
        Row::new(Kind::Gauge, name, help, Read::Count(read))
    }

    /// A number that goes up and down, also below zero.
    pub const fn signed(name: &'static str, help: &'static str, read: fn(&S) -> i64) -> Row<S> {
        Row::new(Kind::Gauge, name, help, Read::Signed(read))
    }

    /// A gauge that is 1 while something is so, and otherwise 0.
    pub const fn flag(name: &'static str, help: &'static str, read: fn(&S) -> bool) -> Row<S> {
        Row::new(Kind::Gauge, name, help, Read::Is(read))
    }

    /// A summary, at a moment (nanoseconds of the clock it was recorded with).
    pub const fn summary(
        name: &'static str,
        help: &'static str,
        read: fn(&S, u64) -> SummarySnapshot,
    ) -> Row<S> {
        Row::new(Kind::Summary, name, help, Read::Summary(read))
    }

    /// Series that `labels` tell apart.
    pub const fn each(
        kind: Kind,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        read: fn(&S, &mut Series<'_>),
    ) -> Row<S> {
        let mut row = Row::new(kind, name, help, Read::Series(read));
        row.about.labels = labels;
        row
    }

    fn write(&self, source: &S, series: &mut Series<'_>) {
        match &self.read {
            Read::Count(read) => series.count(&[], read(source)),
            Read::Signed(read) => series.signed(&[], read(source)),
            Read::Is(read) => series.signed(&[], i64::from(read(source))),
            Read::Summary(read) => {
                let snapshot = read(source, series.now_ns());
                series.summary(&[], &snapshot);
            }
            Read::Series(read) => read(source, series),
        }
    }
}

/// Marks a row; see [`About::is_stand_in`].
#[must_use]
pub const fn stand_in<S>(mut row: Row<S>) -> Row<S> {
    row.about.is_stand_in = true;
    row
}

/// The numbers of an `S`.
pub struct Table<S: 'static> {
    apart: Apart,
    rows: &'static [Row<S>],
}

/// What tells several `S` apart.
#[derive(Debug, Clone, Copy)]
enum Apart {
    /// There is one.
    None,
    /// A label.
    Label(&'static str),
    /// What stands in their names in place of this.
    Name(&'static str),
}

impl<S: 'static> Table<S> {
    /// Of a thing that the process has once.
    pub const fn new(rows: &'static [Row<S>]) -> Table<S> {
        Table { apart: Apart::None, rows }
    }

    /// Of things that are told apart by a label.
    pub const fn by(label: &'static str, rows: &'static [Row<S>]) -> Table<S> {
        Table { apart: Apart::Label(label), rows }
    }

    /// Of things that are told apart by what stands in the names of their numbers in place of `placeholder`, as BookKeeper has it of
    /// its directories.
    pub const fn named(placeholder: &'static str, rows: &'static [Row<S>]) -> Table<S> {
        Table { apart: Apart::Name(placeholder), rows }
    }

    /// Writes the numbers of the only source.
    pub fn expose(&self, source: &S, out: &mut Exposition) {
        self.expose_each([("", source)], out);
    }

    /// Writes the numbers of several sources, name by name. With each comes what its label says; nothing leaves the label out.
    pub fn expose_each<'a>(
        &self,
        sources: impl IntoIterator<Item = (&'a str, &'a S), IntoIter: Clone>,
        out: &mut Exposition,
    ) {
        let sources = sources.into_iter();
        for row in self.rows {
            for (value, source) in sources.clone() {
                let about = &row.about;
                let mut series = match self.apart {
                    Apart::None => out.series(about.name, about, ("", "")),
                    Apart::Label(label) => out.series(about.name, about, (label, value)),
                    Apart::Name(placeholder) => {
                        out.series(&about.name.replace(placeholder, value), about, ("", ""))
                    }
                };
                row.write(source, &mut series);
            }
        }
    }

    /// All names, with what they mean.
    pub fn about(&self) -> Vec<About> {
        let label = match self.apart {
            Apart::Label(label) => label,
            Apart::None | Apart::Name(_) => "",
        };
        self.rows.iter().map(|row| About { label, ..row.about }).collect()
    }
}

/// A field that hot paths record into, and that a scrape reads.
pub trait Handle {
    /// How it is shown.
    const KIND: Kind;
    /// Writes what it holds.
    fn write(&self, series: &mut Series<'_>);
}

impl Handle for Counter {
    const KIND: Kind = Kind::Counter;
    fn write(&self, series: &mut Series<'_>) {
        series.count(&[], self.get());
    }
}

impl Handle for Gauge {
    const KIND: Kind = Kind::Gauge;
    fn write(&self, series: &mut Series<'_>) {
        series.signed(&[], self.get());
    }
}

impl Handle for Summary {
    const KIND: Kind = Kind::Summary;
    fn write(&self, series: &mut Series<'_>) {
        let snapshot = self.snapshot(series.now_ns());
        series.summary(&[], &snapshot);
    }
}

impl Handle for Log2Histogram {
    const KIND: Kind = Kind::Histogram;
    fn write(&self, series: &mut Series<'_>) {
        series.histogram(&self.cumulative(), self.totals().1);
    }
}

/// Makes a struct of handles. A line is field, type, name and help at once; the struct has a `TABLE` of its numbers. `default()` makes it
/// with everything zero. A field that has to be made in another way says how behind `=`, and the struct names what that needs:
/// `struct Numbers(shards: usize)` has `new(shards)` instead.
///
/// `stand_in` behind a help marks the row, see [`About::is_stand_in`]. Fields behind `with` are none of its numbers. Rows behind `also` are numbers that are read out of the same struct and are no handle of
/// their own.
///
/// ```
/// bindery_metrics::numbers! {
///     /// The numbers of a mill.
///     pub struct Mill {
///         turns: Counter("mill_turns", "Turns of the wheel."),
///         sacks: Gauge("mill_sacks", "Sacks that stand there."),
///     }
/// }
/// ```
#[macro_export]
macro_rules! numbers {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($field:ident: $kind:ident($metric:literal, $help:literal $(, $mark:ident)?)),* $(,)?
        }
        $(with { $($(#[$part_meta:meta])* $part_vis:vis $part:ident: $part_type:ty),* $(,)? })?
        $(also { $($row:expr),* $(,)? })?
    ) => {
        $(#[$meta])*
        #[derive(Default)]
        $vis struct $name {
            $(#[doc = concat!("`", $metric, "`: ", $help)] pub $field: $crate::$kind,)*
            $($($(#[$part_meta])* $part_vis $part: $part_type,)*)?
        }

        $crate::numbers!(@table $name [$($field: $kind($metric, $help $(, $mark)?)),*] [$($($row),*)?]);
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident($($argument:ident: $type:ty),+) {
            $($field:ident: $kind:ident($metric:literal, $help:literal $(, $mark:ident)?) $(= $made:expr)?),* $(,)?
        }
        $(with { $($(#[$part_meta:meta])* $part_vis:vis $part:ident: $part_type:ty),* $(,)? })?
        $(also { $($row:expr),* $(,)? })?
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $(#[doc = concat!("`", $metric, "`: ", $help)] pub $field: $crate::$kind,)*
            $($($(#[$part_meta])* $part_vis $part: $part_type,)*)?
        }

        impl $name {
            /// As it is when nothing was measured yet.
            pub fn new($($argument: $type),+) -> Self {
                $name {
                    $($field: $crate::numbers!(@made $kind $($made)?),)*
                    $($($part: Default::default(),)*)?
                }
            }
        }

        $crate::numbers!(@table $name [$($field: $kind($metric, $help $(, $mark)?)),*] [$($($row),*)?]);
    };
    (@made $kind:ident) => { <$crate::$kind>::default() };
    (@made $kind:ident $made:expr) => { $made };
    (@marked $row:expr) => { $row };
    (@marked $row:expr, stand_in) => { $crate::stand_in($row) };
    (@table $name:ident [$($field:ident: $kind:ident($metric:literal, $help:literal $(, $mark:ident)?)),*] [$($row:expr),*]) => {
        impl $name {
            /// Its rows.
            pub const ROWS: &'static [$crate::Row<$name>] = &[
                $($crate::numbers!(@marked $crate::Row::each(
                    <$crate::$kind as $crate::Handle>::KIND,
                    $metric,
                    &[],
                    $help,
                    |source: &$name, series| $crate::Handle::write(&source.$field, series),
                ) $(, $mark)?),)*
                $($row,)*
            ];
            /// All of it.
            pub const TABLE: $crate::Table<$name> = $crate::Table::new($name::ROWS);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    numbers! {
        /// Two kinds, one of them made with what the struct is given.
        struct Mill(shards: usize) {
            turns: Counter("mill_turns", "Turns of the wheel.", stand_in),
            waits: Summary("mill_waits", "How long sacks wait.") = Summary::latency(shards),
        }
        with {
            /// Whose it is.
            owner: String,
        }
        also {
            Row::flag("mill_stands", "1 while it stands.", |mill| mill.turns.get() == 0),
            stand_in(Row::each(Kind::Gauge, "mill_stones", &["stone"], "Their\nspeed.", |mill, series| {
                series.count(&[("stone", "upper")], mill.turns.get());
                series.signed(&[("stone", "lower")], -1);
            })),
        }
    }

    #[test]
    fn a_row_is_field_name_help_and_text() {
        let mill = Mill::new(2);
        assert_eq!(mill.owner, "");
        mill.turns.add(3);
        mill.waits.record(1, 0, 2_000_000, true);
        let mut out = Exposition::new();
        Mill::TABLE.expose(&mill, &mut out);
        let text = out.into_text();
        let begin = "# HELP mill_turns Turns of the wheel.\n# TYPE mill_turns counter\nmill_turns 3\n\
            # HELP mill_waits How long sacks wait.\n# TYPE mill_waits summary\n";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.contains("mill_waits_count{success=\"true\"} 1\n"), "{text}");
        let end = "# HELP mill_stands 1 while it stands.\n# TYPE mill_stands gauge\nmill_stands 0\n\
            # HELP mill_stones Their\\nspeed.\n# TYPE mill_stones gauge\n\
            mill_stones{stone=\"upper\"} 3\nmill_stones{stone=\"lower\"} -1\n";
        assert!(text.ends_with(end), "{text}");
        let about = Mill::TABLE.about();
        assert!(about[0].is_stand_in && !about[1].is_stand_in);
        assert_eq!((about.len(), about[3].labels, about[3].is_stand_in), (4, &["stone"][..], true));
    }

    #[test]
    fn several_sources_stand_together_by_name() {
        let mills = [Mill::new(1), Mill::new(1)];
        mills[1].turns.add(7);
        const TABLE: Table<Mill> = Table::by("mill", Mill::ROWS);
        let mut out = Exposition::new();
        TABLE.expose_each([("", &mills[0]), ("b", &mills[1])], &mut out);
        let text = out.into_text();
        let turns = "# TYPE mill_turns counter\nmill_turns 0\nmill_turns{mill=\"b\"} 7\n# HELP mill_waits";
        assert!(text.contains(turns), "{text}");
        assert!(text.contains("mill_stones{mill=\"b\",stone=\"upper\"} 7\n"), "{text}");
        assert!(text.contains("mill_waits_count{success=\"true\", mill=\"b\"} 0\n"), "{text}");
        assert_eq!(text.matches("# TYPE").count(), 4);
        assert_eq!(TABLE.about()[0].label, "mill");
    }

    #[test]
    fn a_name_may_say_whose_it_is() {
        const TABLE: Table<u64> =
            Table::named("<dir>", &[Row::gauge("dir_<dir>_usage", "Percent.", |usage| *usage)]);
        let mut out = Exposition::new();
        TABLE.expose_each([("/data/a-1", &3), ("/b", &4)], &mut out);
        let help = "# HELP dir__data_a_1_usage Percent.\n# TYPE dir__data_a_1_usage gauge\ndir__data_a_1_usage 3\n\
            # HELP dir__b_usage Percent.\n# TYPE dir__b_usage gauge\ndir__b_usage 4\n";
        assert_eq!(out.into_text(), help);
    }
}
