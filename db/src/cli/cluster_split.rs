//! `sandstorm cluster split`.

use clap::Args;
use sandstorm_client::control::{Control, PlannedSlotMove, SplitReport, SplitSpec};

use super::cluster_words::{id_of, moves, ranges, short};
use super::output::{CliError, OutputPrinter, columns};

/// A server of which about half goes to another one.
#[derive(Debug, Args)]
pub(super) struct SplitArgs {
    /// The server that has too much to do: its id, or the beginning of it; `sandstorm cluster status` shows them
    #[arg(long, value_name = "ID")]
    from: String,
    /// The server that takes about half of it
    #[arg(long, value_name = "ID")]
    to: String,
    /// Look at this tenant's tables alone: half of what it has there goes, and what others have in these slots
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Copy so many MiB a second at most, each move [default: as many as can be]
    #[arg(long, value_name = "MIB", default_value_t = 0, hide_default_value = true)]
    rate: u64,
    /// Only show what would be moved
    #[arg(long)]
    plan: bool,
}

pub(super) fn run(control: &Control, args: &SplitArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let SplitArgs { from, to, tenant, rate, plan } = args;
    let known = control.cluster()?;
    let (from, to) = (id_of(&known, from)?, id_of(&known, to)?);
    let wanted = SplitSpec { from, to, tenant: tenant.clone(), plan: *plan, mib_per_s: *rate };
    out.show(&control.split(&wanted)?, describe)
}

fn describe(report: &SplitReport) -> String {
    let SplitReport { begun, moves: planned, measure, part, slots, bytes, remarks } = report;
    let by = match measure.as_str() {
        "accesses" => "of its accesses",
        "bytes" => "of its records' bytes",
        _ => "of its slots",
    };
    let mut text: String = remarks.iter().map(|remark| format!("{remark}\n")).collect();
    if !begun {
        let row = |one: &PlannedSlotMove| vec![ranges(&[one.slots]), short(&one.from), short(&one.to)];
        text += &columns(&["would move", "from", "to"], &planned.iter().map(row).collect::<Vec<_>>());
    }
    text += &format!("{slots} slots, {:.0} % {by}, {} MiB of records\n", part * 100.0, bytes.div_ceil(1 << 20));
    if *begun {
        text += &format!("began {}; `sandstorm cluster status` shows how far\n", moves(planned.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_names_its_moves_and_by_what_half_was_found() {
        let one = PlannedSlotMove { slots: [4096, 8191], from: "1f0c6a5200".into(), to: "7b2e9d1000".into() };
        let plan = SplitReport {
            begun: false,
            moves: vec![one],
            measure: "accesses".into(),
            part: 0.493,
            slots: 4096,
            bytes: 3 << 20,
            remarks: vec!["slot 9 alone has 40 %: a slot is never divided".into()],
        };
        let text = describe(&plan);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "slot 9 alone has 40 %: a slot is never divided");
        assert!(lines[2].trim_start().starts_with("4096-8191") && lines[2].ends_with("7b2e9d10"), "{text}");
        assert_eq!(lines[3], "4096 slots, 49 % of its accesses, 3 MiB of records");
        let begun = describe(&SplitReport { begun: true, remarks: Vec::new(), measure: "slots".into(), ..plan });
        assert_eq!(
            begun,
            "4096 slots, 49 % of its slots, 3 MiB of records\nbegan 1 move; `sandstorm cluster status` shows how far\n"
        );
    }
}
