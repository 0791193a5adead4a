//! Workers: what each of them does, and the forms to drain and resume it.

use super::{
    Facts,
    form::{Refused, complaint, is_wrong, value},
    layout::{Fragment, Page, element, form_key},
    now::{devices, worker_state},
};
use crate::{web::Caller, words};
use baton_broker_queue::WorkerView;
use baton_protocol::api::Pool;
use maud::{Markup, html};

pub(super) fn page(facts: &Facts, caller: &Caller, refused: Option<&Refused>) -> Page {
    let fragments = fragments(facts);
    Page {
        here: "workers",
        title: "Workers".to_owned(),
        live: Some("live?of=workers".to_owned()),
        main: html! {
            div.head { h1 { "Workers" } p.quiet { "Machines that run cells" } }
            section.card { (element(&fragments, "workers")) }
            @if !facts.pools.is_empty() { section.card { (element(&fragments, "pools")) } }
            @if caller.identity.may_steer_workers() { (acts(&facts.present.workers, caller, refused)) }
            @else { p.quiet { "Only admins can drain workers, because workers serve all courses." } }
        },
    }
}

pub(super) fn fragments(facts: &Facts) -> Vec<Fragment> {
    vec![
        ("workers", table(facts).into_string()),
        ("pools", pools(&facts.pools).into_string()),
    ]
}

fn table(facts: &Facts) -> Markup {
    let workers = &facts.present.workers;
    html! {
        div.scroll tabindex="0" role="region" aria-label="Workers" { table {
            caption { "Workers" }
            thead { tr {
                th scope="col" { "Worker" }
                th scope="col" { "State" }
                th scope="col" { "Why" }
                th scope="col" { "Devices" }
                th.number scope="col" { "Cells" }
                th.number scope="col" { "Sessions" }
                th.number scope="col" { "GPU" }
                th.number scope="col" { "Memory" }
            } }
            tbody {
                @for worker in workers {
                    tr {
                        th scope="row" { (worker.name) }
                        td { (worker_state(worker)) }
                        td.words { (worker.reason().unwrap_or("–")) }
                        td { (devices(worker)) (traits(worker, facts.now_ms)) }
                        td.number { (worker.jobs) " of " (worker.slots) }
                        td.number { (worker.sessions) }
                        td.number { (gpus(worker)) }
                        td.number {
                            @match worker.memory {
                                Some((used, whole)) => { (baton_humanize::bytes(used)) " of " (baton_humanize::bytes(whole)) }
                                None => "–",
                            }
                        }
                    }
                }
                @if workers.is_empty() {
                    tr { td.empty colspan="8" { "No worker is connected. Start one with " code { "baton worker" } ", or all on one machine with " code { "baton up" } "." } }
                }
            }
        } }
    }
}

fn pools(pools: &[Pool]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Pools" { table {
            caption { "Pools" }
            thead { tr {
                th scope="col" { "Pool" }
                th scope="col" { "State" }
                th scope="col" { "Why" }
                th.number scope="col" { "Workers" }
                th.number scope="col" { "Pending" }
                th.number scope="col" { "Wanted" }
                th.number scope="col" { "Start" }
            } }
            tbody { @for pool in pools { tr {
                th scope="row" { (pool.pool) }
                td { @if pool.paused { "▲ paused" } @else { "● active" } }
                td.words {
                    (pool.last_failure.as_deref().unwrap_or("–"))
                    @if pool.paused { ". Resume it with " code { "baton pools resume " (pool.pool) } }
                }
                td.number { (pool.up) " (" (pool.min) " to " (pool.max) ")" }
                td.number { (pool.pending) }
                td.number { (pool.wanted) }
                td.number { @match &pool.start { Some(start) => (words::range(start)), None => "–" } }
            } } }
        } }
    }
}

/// The properties of a worker that courses may require.
fn traits(worker: &WorkerView, now_ms: i64) -> Markup {
    let machine = &worker.machine;
    let labels = (!machine.labels.is_empty()).then(|| machine.labels.join(", "));
    let capability = worker
        .devices
        .iter()
        .find_map(|device| device.compute_capability);
    let facts = [
        labels,
        capability.map(|version| format!("compute capability {version}")),
        machine
            .driver
            .as_ref()
            .map(|version| format!("driver {version}")),
        machine.leaves_at_ms.map(|at| {
            let left = words::rough(at.saturating_sub(now_ms));
            format!("leaves in {left}")
        }),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    html! {
        @if !facts.is_empty() { br; small.quiet { (facts.join(", ")) } }
        @for environment in &machine.environments { br; small.quiet { "environment " (environment.to_string()) } }
    }
}

/// A line for each GPU: how busy it is, and how much of its memory is in use.
fn gpus(worker: &WorkerView) -> Markup {
    html! {
        @for (number, gpu) in worker.gpus.iter().enumerate() {
            @if number > 0 { br; }
            @if let Some(busy) = gpu.utilisation_percent { (busy) " %, " }
            (baton_humanize::bytes(gpu.memory_used_bytes))
        }
        @if worker.gpus.is_empty() { "–" }
    }
}

fn acts(workers: &[WorkerView], caller: &Caller, refused: Option<&Refused>) -> Markup {
    html! {
        div.cards { @for worker in workers {
            @let refused = refused.filter(|refused| refused.field("worker") == worker.name);
            section.card id={ "act-" (worker.name) } {
                h2 { (worker.name) }
                form.act method="post" action="act" {
                    (form_key(caller))
                    input type="hidden" name="worker" value=(worker.name);
                    (complaint(refused, "action"))
                    @if worker.paused.is_some() {
                        p.quiet { "It accepts no new cells." }
                        div.buttons { button.first name="action" value="resume" { "Resume " (worker.name) } }
                    } @else {
                        label { "Reason" small { "Waiting students read this. Running cells continue." } (complaint(refused, "reason")) input name="reason" maxlength="500" required autocomplete="off" value=(value(refused, "reason", "")) autofocus[is_wrong(refused, "reason")]; }
                        div.buttons { button name="action" value="drain" { "Drain " (worker.name) } }
                    }
                }
            }
        } }
    }
}
