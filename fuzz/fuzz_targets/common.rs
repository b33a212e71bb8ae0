//! Analyse bytes as the command does, with little memory so that eviction happens, and check the properties that must always hold.

use guestmark_capture::engine::analysis::Analysis;
use guestmark_capture::wire::input::Source;
use guestmark_capture::report::output::{tcp_stats, By, Format, Options, Writer};
use guestmark_capture::wire::services::Services;
use guestmark_capture::results::summary::ConnectionSummary;
use guestmark_capture::results::watch::Watch;
use std::io::Cursor;

pub fn check(summary: &ConnectionSummary) {
    for side in [&summary.client, &summary.server] {
        assert_eq!(side.unique_bytes + side.retransmitted_bytes, side.payload_bytes);
        // A copy that was not yet recognised as one may have ended a response.
        assert!(side.response.count <= side.packets + u64::from(side.copies));
        assert!(side.response.min_s <= side.response.p50_s && side.response.p50_s <= side.response.max_s);
    }
    let spent: Vec<f64> = summary.causes.parts().iter().filter_map(|(_, part)| *part).collect();
    let whole: f64 = spent.iter().sum();
    assert!(spent.iter().all(|&part| part >= 0.0));
    assert!(spent.is_empty() || (whole - summary.duration_s).abs() <= 1e-6 * summary.duration_s.max(1.0), "{whole} of {}", summary.duration_s);
}

#[allow(dead_code)]
pub fn analyse(bytes: &[u8]) {
    let services = Services::parse("http 80/tcp\n");
    let mut packets = 0;
    let mut output = |summary: &ConnectionSummary| {
        check(summary);
        packets += summary.packets();
        let _ = tcp_stats(summary, &Services::parse(""));
    };
    let mut analysis = Analysis::new(1, None, &mut output).watching(Watch::new(None)).with_longest_waits().with_requests();
    if let Ok(mut source) = Source::new(Box::new(Cursor::new(bytes))) {
        let _ = analysis.read(&mut source, &services);
    }
    let report = analysis.end();
    assert_eq!(packets, report.truth.counted);
    let options = Options { format: Format::Json, by: By::Connection, top: None, histograms: true };
    let mut text = Vec::new();
    let mut writer = Writer::new(&mut text, options, services);
    writer.begin("fuzz");
    writer.end(None, &report, None, Vec::new());
    writer.finish().expect("memory can be written");
}
