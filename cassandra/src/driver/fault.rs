//! What is certain after an error of the driver. This is the one table of it.
//!
//! Whatever is not known to have had no effect counts as unknown.

use scylla::errors::{DbError, ExecutionError, PrepareError, RequestAttemptError};

use crate::database::Fault;
use crate::statement::Statement;

pub(super) fn of_execution(error: &ExecutionError, statement: &Statement) -> Fault {
    match error {
        // The driver compares our values with the types the server told when it prepared.
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
            &format!("{message}; holdfast cassandra schema shows the tables, and makes them"),
        ),
        DbError::SyntaxError | DbError::AuthenticationError | DbError::Unauthorized => {
            refused(statement, message)
        }
        DbError::Unavailable { consistency, required, alive } => {
            Fault::NotDone(format!("{consistency} needs {required} replicas, {alive} alive"))
        }
        DbError::IsBootstrapping => Fault::NotDone(error.to_string()),
        // Also the time-outs of an LWT (`WriteTimeout` of type CAS): it may yet be applied.
        _ => Fault::Unknown(error.to_string()),
    }
}

fn refused(statement: &Statement, message: &str) -> Fault {
    Fault::Refused(format!("table {}: {message}", statement.table.as_str()))
}
