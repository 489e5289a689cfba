//! Plots as PNG, with a font that comes along so that none of the system's is needed.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::Path;

const FONT: &str = "plot";
const SIZE: (u32, u32) = (1100, 400);
const LEGEND_WIDTH: u32 = 190;

/// Colours of bookies, in order of appearance; the first is ours.
const COLOURS: [RGBColor; 5] = [
    RGBColor(200, 60, 20),
    RGBColor(30, 90, 170),
    RGBColor(90, 140, 60),
    RGBColor(130, 80, 160),
    RGBColor(90, 90, 90),
];

/// The colour of what is no bookie.
pub const GREY: usize = COLOURS.len() - 1;

/// A line: name and points. A point that is not finite leaves a gap.
pub struct Line {
    /// For the legend.
    pub name: String,
    /// x and y.
    pub points: Vec<(f64, f64)>,
    /// Which colour.
    pub colour: usize,
    /// Drawn thin.
    pub is_thin: bool,
}

/// A panel of a plot.
#[derive(Default)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Lines, drawn in this order.
    pub lines: Vec<Line>,
    /// Crosses: moments at which requests failed.
    pub crosses: Vec<(f64, f64)>,
    /// A shaded span of x with a name.
    pub shade: Option<(f64, f64, &'static str)>,
    /// Names of x positions 0, 1, 2 ... instead of numbers.
    pub x_names: Vec<String>,
    /// Label of the x axis.
    pub x_label: &'static str,
    /// Label of the y axis.
    pub y_label: &'static str,
    /// Logarithmic y.
    pub is_log: bool,
    /// Points are shown as such.
    pub has_dots: bool,
}

fn font() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // a second registration of the same bytes cannot fail where the first did not
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
    });
}

fn style(line: &Line) -> ShapeStyle {
    let colour = COLOURS[line.colour % COLOURS.len()];
    colour.mix(if line.is_thin { 0.55 } else { 1.0 }).stroke_width(if line.is_thin { 1 } else { 2 })
}

/// Beside the panel, where it hides nothing.
fn legend(side: &DrawingArea<BitMapBackend<'_>, Shift>, panel: &Panel) -> Result<()> {
    let shown = |error: &dyn std::fmt::Debug| anyhow!("{error:?}");
    let text = |name: &str, y: i32| Text::new(name.to_owned(), (28, y - 6), (FONT, 13));
    let mut y = 50;
    for line in &panel.lines {
        side.draw(&PathElement::new([(4, y), (22, y)], style(line))).map_err(|e| shown(&e))?;
        side.draw(&text(&line.name, y)).map_err(|e| shown(&e))?;
        y += 20;
    }
    if !panel.crosses.is_empty() {
        side.draw(&Cross::new((13, y), 4, RED.stroke_width(1))).map_err(|e| shown(&e))?;
        side.draw(&text("not in time, refused", y)).map_err(|e| shown(&e))?;
    }
    Ok(())
}

/// Writes panels one below the other.
pub fn draw(path: &Path, panels: &[Panel]) -> Result<()> {
    font();
    let area = BitMapBackend::new(path, (SIZE.0, SIZE.1 * panels.len() as u32)).into_drawing_area();
    let shown = |error: &dyn std::fmt::Debug| anyhow!("{}: {error:?}", path.display());
    area.fill(&WHITE).map_err(|e| shown(&e))?;
    for (part, panel) in area.split_evenly((panels.len(), 1)).iter().zip(panels) {
        let all = || panel.lines.iter().flat_map(|line| &line.points).chain(&panel.crosses);
        let finite = |v: &f64| v.is_finite();
        let x_max = all().map(|p| p.0).filter(finite).fold(0.0, f64::max).max(1e-9);
        let y_max = all().map(|p| p.1).filter(finite).fold(0.0, f64::max).max(1e-9);
        let y_min = all().map(|p| p.1).filter(|v| v.is_finite() && *v > 0.0).fold(y_max, f64::min);
        let x_range =
            if panel.x_names.is_empty() { 0.0..x_max } else { -0.3..(panel.x_names.len() as f64 - 0.7) };
        let (body, side) = part.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        legend(&side, panel).map_err(|e| shown(&e))?;
        let mut builder = ChartBuilder::on(&body);
        builder.caption(&panel.title, (FONT, 19)).margin(10).x_label_area_size(44).y_label_area_size(78);
        // the two kinds of axes are two types
        macro_rules! panel_on {
            ($y:expr, $bottom:expr, $top:expr) => {{
                let mut chart = builder.build_cartesian_2d(x_range, $y).map_err(|e| shown(&e))?;
                let names = panel.x_names.clone();
                let number = |v: &f64| if *v >= 1000.0 { format!("{v:.0}") } else { format!("{v}") };
                let x_text = move |v: &f64| {
                    if names.is_empty() {
                        return format!("{v:.0}");
                    }
                    let near = v.round();
                    if (v - near).abs() > 0.01 || near < 0.0 {
                        String::new()
                    } else {
                        names.get(near as usize).cloned().unwrap_or_default()
                    }
                };
                let ticks = if panel.x_names.is_empty() { 12 } else { panel.x_names.len() * 2 };
                chart
                    .configure_mesh()
                    .light_line_style(BLACK.mix(0.04))
                    .bold_line_style(BLACK.mix(0.12))
                    .x_labels(ticks)
                    .y_labels(if panel.is_log { 6 } else { 9 })
                    .x_label_formatter(&x_text)
                    .y_label_formatter(&number)
                    .x_desc(panel.x_label)
                    .y_desc(panel.y_label)
                    .label_style((FONT, 13))
                    .axis_desc_style((FONT, 14))
                    .draw()
                    .map_err(|e| shown(&e))?;
                if let Some((from, to, name)) = panel.shade {
                    let span = Rectangle::new([(from, $bottom), (to, $top)], BLACK.mix(0.07).filled());
                    chart.draw_series([span]).map_err(|e| shown(&e))?;
                    let text = Text::new(
                        name,
                        (from + (to - from) * 0.01, if panel.is_log { $top * 0.75 } else { $top * 0.97 }),
                        (FONT, 13),
                    );
                    chart.draw_series([text]).map_err(|e| shown(&e))?;
                }
                for line in &panel.lines {
                    let style = style(line);
                    let mut pieces = line.points.split(|p| !p.1.is_finite());
                    let first = pieces.next().unwrap_or_default().to_vec();
                    chart.draw_series(LineSeries::new(first, style)).map_err(|e| shown(&e))?;
                    for piece in pieces {
                        chart.draw_series(LineSeries::new(piece.to_vec(), style)).map_err(|e| shown(&e))?;
                    }
                    if panel.has_dots {
                        let dots = line
                            .points
                            .iter()
                            .filter(|p| p.1.is_finite())
                            .map(|p| Circle::new(*p, 3, style.filled()));
                        chart.draw_series(dots).map_err(|e| shown(&e))?;
                    }
                }
                if !panel.crosses.is_empty() {
                    let cross = |p: &(f64, f64)| Cross::new(*p, 4, RED.stroke_width(1));
                    chart.draw_series(panel.crosses.iter().map(cross)).map_err(|e| shown(&e))?;
                }
            }};
        }
        if panel.is_log {
            // whole decades, at least two, so that the labels have room
            let bottom = 10f64.powf((y_min * 0.9).log10().floor());
            let top = 10f64.powf((y_max * 1.1).log10().ceil()).max(bottom * 100.0);
            panel_on!((bottom..top).log_scale(), bottom, top);
        } else {
            panel_on!(0.0..y_max * 1.25, 0.0, y_max * 1.25);
        }
    }
    area.present().map_err(|e| shown(&e))
}
