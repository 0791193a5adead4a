//! GPU time that staff grant people beyond the budget of their course.

use super::{Dispatch, NotDone, Now, explain};
use crate::{
    Account, Identity,
    courses::{Allowance, Wrong, check_text, everyone},
};
use baton_protocol::api;

pub(super) fn of_course(
    dispatch: &Dispatch,
    seen_by: &Identity,
    course: &str,
    now: Now,
) -> Result<Vec<api::Allowance>, NotDone> {
    explain::sees_course(dispatch, seen_by, course, now)?;
    let account = |owner: &str| Account {
        owner: owner.to_owned(),
        course: course.to_owned(),
    };
    let all = dispatch
        .accounts
        .allowances()
        .of_course(course, now.unix_ms);
    let seen = all.filter(|(owner, _)| owner.is_empty() || seen_by.may_see(&account(owner)));
    Ok(seen
        .map(|(owner, allowance)| api::Allowance {
            person: (!owner.is_empty()).then(|| owner.to_owned()),
            gpu_time_ms: allowance.extra_ms,
            until_ms: allowance.until_ms,
            by: allowance.by.clone(),
            budget: match owner {
                "" => None,
                owner => explain::budget_left(dispatch, &account(owner), now),
            },
        })
        .collect())
}

/// What staff grant, if they may. Without `until_ms` it ends with the present period of the budget.
pub(super) fn checked(
    dispatch: &Dispatch,
    who: &Identity,
    account: &Account,
    extra_ms: u64,
    until_ms: Option<i64>,
    now: Now,
) -> Result<Allowance, Wrong> {
    let Some(budget) = dispatch.accounts.budget(account, now) else {
        let says = "cannot be granted: the course has no budget";
        return Err(Wrong::new("gpu_time_ms", says));
    };
    let allowance = Allowance {
        extra_ms,
        until_ms: until_ms.unwrap_or(budget.period_end_ms),
        by: who.person().map(str::to_owned),
    };
    let allowances = dispatch.accounts.allowances();
    allowances.check(account, &allowance, now.unix_ms)?;
    if !who.is_admin() {
        let course = dispatch.accounts.courses().of(&account.course);
        course.allows_extra(allowances, account, extra_ms, now.unix_ms)?;
    }
    Ok(allowance)
}

/// The account of an allowance for a person, or for everyone in the course.
pub(super) fn account_of(course: &str, person: Option<String>) -> Result<Account, Wrong> {
    let mut account = everyone(course);
    if let Some(person) = person {
        check_text("person", &person)?;
        account.owner = person;
    }
    Ok(account)
}

/// For the audit log and messages.
pub(super) fn called(account: &Account) -> String {
    match account.owner.as_str() {
        "" => "everyone".to_owned(),
        owner => owner.to_owned(),
    }
}
