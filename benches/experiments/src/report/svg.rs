//! Plots as SVG inside a page: lines through medians, whiskers from minimum to maximum. Colours are the page's classes,
//! so they follow the reader's light or dark theme. Every point shows its values on hover.

use super::text::{escape, number};
use super::{AxisScale, LinePlot, PlotAxis};

/// Width in the drawing's units; the page scales it to its own width.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;
/// Number of the page's line colours; further series reuse them.
const COLOURS: usize = 8;
/// Height of one line of the legend.
const LEGEND_LINE: f64 = 18.0;
/// Approximate number of marks of an axis.
const TICKS: f64 = 6.0;

/// Maps values to positions on the drawing.
struct AxisMapping {
    scale: AxisScale,
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl AxisMapping {
    /// Creates a mapping that covers all values; a linear axis begins at zero.
    fn around(scale: AxisScale, values: impl Iterator<Item = f64>, start: f64, end: f64) -> AxisMapping {
        let drawn = values.filter(|value| value.is_finite() && (scale == AxisScale::Linear || *value > 0.0));
        let (least, most) =
            drawn.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
        let (from, to) = match scale {
            _ if least > most => (if scale == AxisScale::Log { 1.0 } else { 0.0 }, 10.0),
            AxisScale::Linear => (least.min(0.0), if most > least.min(0.0) { most * 1.05 } else { 1.0 }),
            // An axis of one value still has a length.
            AxisScale::Log => (least / 1.15, most * 1.15),
        };
        AxisMapping { scale, from, to, start, end }
    }

    /// The position of a value; `None` where this axis does not cover it.
    fn pixel(&self, value: f64) -> Option<f64> {
        let share = match self.scale {
            AxisScale::Linear => (value - self.from) / (self.to - self.from),
            AxisScale::Log if value > 0.0 => (value / self.from).ln() / (self.to / self.from).ln(),
            AxisScale::Log => return None,
        };
        share.is_finite().then_some(self.start + share * (self.end - self.start))
    }

    /// Round values to mark on the axis.
    fn ticks(&self) -> Vec<f64> {
        if self.scale == AxisScale::Linear {
            let step = round_step((self.to - self.from) / TICKS);
            let first = (self.from / step).ceil() as i64;
            return (first..=(self.to / step).floor() as i64).map(|at| at as f64 * step).collect();
        }
        let decades = (self.to / self.from).log10();
        let factors: &[f64] = match decades {
            decades if decades > 4.0 => &[1.0],
            decades if decades > 1.5 => &[1.0, 3.0],
            _ => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
        };
        let exponents = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        let all = exponents.flat_map(|exponent| factors.iter().map(move |factor| factor * 10f64.powi(exponent)));
        all.filter(|tick| (self.from..=self.to).contains(tick)).collect()
    }
}

/// The next of 1, 2, 5 and their tenfolds.
fn round_step(step: f64) -> f64 {
    let decade = 10f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * decade >= step).unwrap_or(10.0);
    factor * decade
}

/// The drawing.
pub(super) fn plot(plot: &LinePlot) -> String {
    let points = || plot.series.iter().flat_map(|series| &series.points);
    let x = AxisMapping::around(plot.x.scale, points().map(|point| point.x), LEFT, WIDTH - RIGHT);
    let ys = points().flat_map(|point| [point.y.least, point.y.median, point.y.most]);
    let y = AxisMapping::around(plot.y.scale, ys, HEIGHT - BOTTOM, TOP);
    let height = HEIGHT + LEGEND_LINE * plot.series.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\"><title>{}</title>",
        escape(&plot.title),
        escape(&plot.title)
    );
    svg.push_str(&axes(&plot.x, &plot.y, &x, &y));
    for (index, series) in plot.series.iter().enumerate() {
        let class = format!("c{}", index % COLOURS);
        let pixels =
            series.points.iter().filter_map(|point| Some((x.pixel(point.x)?, y.pixel(point.y.median)?, point)));
        let line: Vec<String> = pixels.clone().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        svg.push_str(&format!("<polyline class=\"{class} line\" points=\"{}\"/>", line.join(" ")));
        for (at_x, at_y, point) in pixels {
            if let (Some(low), Some(high), true) =
                (y.pixel(point.y.least), y.pixel(point.y.most), point.y.rounds.len() > 1)
            {
                svg.push_str(&format!("<path class=\"{class} whisker\" d=\"M{at_x:.1} {low:.1}V{high:.1}\"/>"));
            }
            let label = format!("{}: {} at {}", series.name, number(point.y.median), number(point.x));
            svg.push_str(&format!(
                "<circle class=\"{class} dot\" cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"3.5\"><title>{}</title></circle>",
                escape(&label)
            ));
        }
        let at_y = HEIGHT + LEGEND_LINE * index as f64 + 4.0;
        let name = escape(&series.name);
        svg.push_str(&format!("<path class=\"{class} line\" d=\"M{LEFT} {at_y}h24\"/>"));
        svg.push_str(&format!("<text x=\"{}\" y=\"{}\">{name}</text>", LEFT + 32.0, at_y + 4.0));
    }
    svg.push_str("</svg>");
    svg
}

/// Grid, marks and names.
fn axes(x_axis: &PlotAxis, y_axis: &PlotAxis, x: &AxisMapping, y: &AxisMapping) -> String {
    let (left, right, bottom) = (LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM);
    let mut svg = String::new();
    for tick in y.ticks() {
        let Some(at) = y.pixel(tick) else { continue };
        let text = number(tick);
        svg.push_str(&format!("<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/>"));
        svg.push_str(&format!("<text class=\"end\" x=\"{}\" y=\"{:.1}\">{text}</text>", left - 6.0, at + 4.0));
    }
    for tick in x.ticks() {
        let Some(at) = x.pixel(tick) else { continue };
        let text = number(tick);
        svg.push_str(&format!("<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/>"));
        svg.push_str(&format!("<text class=\"middle\" x=\"{at:.1}\" y=\"{}\">{text}</text>", bottom + 16.0));
    }
    svg.push_str(&format!("<path class=\"axis\" d=\"M{left} {TOP}V{bottom}H{right}\"/>"));
    let (middle_x, middle_y) = ((left + right) / 2.0, (TOP + bottom) / 2.0);
    let name = escape(&x_axis.name);
    svg.push_str(&format!("<text class=\"middle\" x=\"{middle_x}\" y=\"{}\">{name}</text>", bottom + 34.0));
    let name = escape(&y_axis.name);
    svg.push_str(&format!("<text class=\"middle\" transform=\"translate(13 {middle_y}) rotate(-90)\">{name}</text>"));
    svg
}
