//! What is certain after an error of the driver: the one table of it.
//!
//! Every error that may have had an effect counts as unknown.

use scylla::errors::{DbError, ExecutionError, PrepareError, RequestAttemptError};

use crate::database::Fault;
use crate::statement::Statement;

pub(super) fn of_execution(error: &ExecutionError, statement: &Statement) -> Fault {
    match error {
        // The driver compares our values with the types that the server reported when it prepared
        // the statement.
        ExecutionError::BadQuery(error) => refused(
            statement,
            &format!("its columns are of other types than the recipe's ({error})"),
        ),
        // Nothing was sent.
        ExecutionError::EmptyPlan | ExecutionError::ConnectionPoolError(_) => {
            Fault::NotDone(error.to_string())
        }
        ExecutionError::PrepareError(error) => of_preparation(error, statement),
        ExecutionError::LastAttemptError(error) => of_attempt(error, statement),
        _ => Fault::Unknown(error.to_string()),
    }
}

/// After an error of a statement that makes or changes a table: a cluster that did not answer in time may do it all the same.
pub(super) fn of_definition(error: &ExecutionError) -> Fault {
    match error {
        ExecutionError::EmptyPlan | ExecutionError::ConnectionPoolError(_) => {
            Fault::NotDone(error.to_string())
        }
        ExecutionError::BadQuery(_) => Fault::Refused(error.to_string()),
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(said, message)) => match said
        {
            DbError::Invalid
            | DbError::ConfigError
            | DbError::SyntaxError
            | DbError::AlreadyExists { .. }
            | DbError::AuthenticationError
            | DbError::Unauthorized => Fault::Refused(message.clone()),
            DbError::Unavailable { .. } | DbError::IsBootstrapping => {
                Fault::NotDone(error.to_string())
            }
            _ => Fault::Unknown(error.to_string()),
        },
        _ => Fault::Unknown(error.to_string()),
    }
}

/// Nothing was executed.
pub(super) fn of_preparation(error: &PrepareError, statement: &Statement) -> Fault {
    if let PrepareError::AllAttemptsFailed { first_attempt } = error
        && let refused @ Fault::Refused(_) = of_attempt(first_attempt, statement)
    {
        return refused;
    }
    Fault::NotDone(error.to_string())
}

fn of_attempt(error: &RequestAttemptError, statement: &Statement) -> Fault {
    match error {
        RequestAttemptError::SerializationError(_)
        | RequestAttemptError::CqlRequestSerialization(_) => refused(statement, &error.to_string()),
        RequestAttemptError::UnableToAllocStreamId => Fault::NotDone(error.to_string()),
        RequestAttemptError::DbError(error, message) => of_server(error, message, statement),
        _ => Fault::Unknown(error.to_string()),
    }
}

fn of_server(error: &DbError, message: &str, statement: &Statement) -> Fault {
    match error {
        DbError::Invalid | DbError::ConfigError => refused(
            statement,
            &format!(
                "{message}; `holdfast cassandra schema --apply` makes the tables that are not there, and adds the \
                 columns that tables of an older version lack"
            ),
        ),
        DbError::SyntaxError | DbError::AuthenticationError | DbError::Unauthorized => {
            refused(statement, message)
        }
        DbError::Unavailable { consistency, required, alive } => {
            let message = format!("{consistency} needs {required} replicas, {alive} alive");
            Fault::of_too_few_replicas(statement, message)
        }
        DbError::IsBootstrapping => Fault::NotDone(error.to_string()),
        // Includes the time-outs of an LWT (`WriteTimeout` of type CAS), which may still be
        // applied.
        _ => Fault::Unknown(error.to_string()),
    }
}

fn refused(statement: &Statement, message: &str) -> Fault {
    Fault::Refused(format!("table {}: {message}", statement.table.as_str()))
}

#[cfg(test)]
mod tests {
    use scylla::statement::Consistency;

    use super::*;
    use crate::statement::{Action, Ident, Value};

    fn unavailable(action: Action) -> Fault {
        let key = vec![(Ident::new("name"), Value::from("jobs"))];
        let statement = Statement::new(Ident::new("leases"), key, action);
        let (consistency, required, alive) = (Consistency::Quorum, 2, 1);
        let error = DbError::Unavailable { consistency, required, alive };
        let error = RequestAttemptError::DbError(error, "too few".to_owned());
        of_execution(&ExecutionError::LastAttemptError(error), &statement)
    }

    /// B21: a cluster that was too slow has refused nothing.
    #[test]
    fn a_definition_without_an_answer_is_unknown_and_one_that_was_refused_is_refused() {
        let said = |said: DbError| {
            let error = RequestAttemptError::DbError(said, "because".to_owned());
            of_definition(&ExecutionError::LastAttemptError(error))
        };
        for refusal in [DbError::Invalid, DbError::Unauthorized, DbError::SyntaxError] {
            assert_eq!(said(refusal), Fault::Refused("because".to_owned()));
        }
        assert!(matches!(said(DbError::ServerError), Fault::Unknown(_)));
        assert!(matches!(said(DbError::Overloaded), Fault::Unknown(_)));
        let late = ExecutionError::RequestTimeout(std::time::Duration::from_secs(30));
        assert!(matches!(of_definition(&late), Fault::Unknown(_)));
        assert!(matches!(of_definition(&ExecutionError::EmptyPlan), Fault::NotDone(_)));
    }

    /// Paxos v1 counts the replicas for the commit only after the proposal was accepted: by then the LWT is decided.
    #[test]
    fn too_few_replicas_leave_the_outcome_of_an_lwt_open_and_of_nothing_else() {
        let (cells, only_if, ttl_s) = (Vec::new(), Vec::new(), None);
        let lwts = [
            Action::InsertIfAbsent { cells: cells.clone(), ttl_s },
            Action::UpdateIf { cells: cells.clone(), ttl_s, only_if: only_if.clone() },
            Action::DeleteIf { only_if },
        ];
        for lwt in lwts {
            assert!(matches!(unavailable(lwt.clone()), Fault::Unknown(_)), "{lwt:?}");
        }
        let others = [
            Action::Put { cells, ttl_s: 1, at_us: 1 },
            Action::Erase { at_us: 1 },
            Action::SelectSerial { columns: Vec::new() },
        ];
        for other in others {
            assert!(matches!(unavailable(other.clone()), Fault::NotDone(_)), "{other:?}");
        }
    }
}
