//! The plots, as SVG.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::row::find;
use super::{Cell, Figure, Keys, STORES, THREADS};

const SIZE: (u32, u32) = (900, 520);
/// A colour for each store, distinct on white also for readers who see no red or green.
const COLOURS: [RGBColor; STORES.len()] = [
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(148, 103, 189),
    RGBColor(213, 94, 0),
    RGBColor(127, 127, 127),
    RGBColor(0, 0, 0),
];

/// One picture: a figure over the number of threads, a line for each store.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// The file, without its folder.
    pub file: &'static str,
    keys: Keys,
    figure: Figure,
}

impl Plot {
    /// All plots.
    pub const ALL: [Self; 5] = [
        Self { file: "one-key-rate.svg", keys: Keys::One, figure: Figure::Rate },
        Self { file: "one-key-p99.svg", keys: Keys::One, figure: Figure::Slow },
        Self { file: "one-key-fairness.svg", keys: Keys::One, figure: Figure::Fairness },
        Self { file: "one-key-operations.svg", keys: Keys::One, figure: Figure::Operations },
        Self { file: "distinct-keys-rate.svg", keys: Keys::Distinct, figure: Figure::Rate },
    ];

    fn points(&self, cells: &[Cell], store: super::Store) -> Vec<(f64, f64)> {
        let point = |threads: u64| {
            let value = find(cells, store, threads, self.keys)?.figure(self.figure)?;
            // Small whole numbers.
            Some((f64::from(u32::try_from(threads).ok()?), value))
        };
        THREADS.into_iter().filter_map(point).collect()
    }

    /// The range from a little below the least to a little above the greatest.
    fn heights(&self, cells: &[Cell]) -> Range<f64> {
        let all = STORES.into_iter().flat_map(|store| self.points(cells, store));
        let (least, most) = all
            .filter(|(_, value)| *value > 0.0)
            .fold((f64::MAX, f64::MIN), |(least, most), (_, value)| {
                (least.min(value), most.max(value))
            });
        if least > most { 0.1..1.0 } else { least / 1.5..most * 1.5 }
    }
}

/// Draws one plot.
///
/// # Errors
///
/// The library's error; it writes into memory, so none is known.
pub fn draw(plot: Plot, cells: &[Cell]) -> Result<String, String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let drawn = if plot.figure == Figure::Fairness {
        draw_on(&area, plot, cells, 0.0..1.05)
    } else {
        draw_on(&area, plot, cells, plot.heights(cells).log_scale())
    };
    let drawn = drawn.and_then(|()| area.present().map_err(|error| error.to_string()));
    drop(area);
    drawn.map(|()| svg)
}

fn draw_on<Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    plot: Plot,
    cells: &[Cell],
    heights: Y,
) -> Result<(), String>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let failed = |error: DrawingAreaErrorKind<_>| error.to_string();
    area.fill(&WHITE).map_err(failed)?;
    // To the right of a hundred threads there is room for the legend.
    let widths = (0.9_f64..700.0).log_scale();
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: {}", plot.keys, plot.figure), ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(widths, heights)
        .map_err(failed)?;
    let mut mesh = chart.configure_mesh();
    let threads = |threads: &f64| format!("{threads:.0}");
    // Values that are summed up in tenths are not round numbers.
    let value = |value: &f64| {
        let shown = format!("{value:.3}");
        shown.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    mesh.x_desc("threads").x_label_formatter(&threads).y_label_formatter(&value);
    mesh.light_line_style(WHITE).draw().map_err(failed)?;
    for (store, colour) in STORES.into_iter().zip(COLOURS) {
        let points = plot.points(cells, store);
        if points.is_empty() {
            continue;
        }
        let width = if store.name == "native" { 3 } else { 2 };
        let line = LineSeries::new(points.clone(), colour.stroke_width(width)).point_size(3);
        let series = chart.draw_series(line).map_err(failed)?;
        series.label(store.name).legend(move |(x, y)| {
            PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(width))
        });
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::MiddleRight);
    legend.background_style(WHITE.mix(0.85)).border_style(BLACK.mix(0.3)).draw().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::super::cells;
    use super::*;

    #[test]
    fn a_plot_names_the_stores_that_have_points_and_no_others() {
        let rows = "\
{\"peer\":\"cassandra-queue\",\"n\":10,\"workload\":\"W3\",\"ops_per_s\":1.25,\"jain\":0.9}
{\"peer\":\"holdfast\",\"n\":10,\"workload\":\"W3\",\"ops_per_s\":902.4,\"jain\":1.0}
{\"peer\":\"holdfast\",\"n\":100,\"workload\":\"W3\",\"ops_per_s\":900.0,\"jain\":1.0}
";
        let cells = cells(rows).unwrap();
        for plot in Plot::ALL {
            let svg = draw(plot, &cells).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            let has_points =
                matches!(plot.figure, Figure::Rate | Figure::Fairness) && plot.keys == Keys::One;
            assert_eq!(svg.contains("native"), has_points, "{plot:?}");
            assert_eq!(svg.contains("queue"), has_points, "{plot:?}");
            assert!(!svg.contains("shadow"), "{plot:?}");
        }
    }
}
