package lucius

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// Scanner is a row that a query returned, as *sql.Row or pgx.Row.
type Scanner interface{ Scan(into ...any) error }

// QueryRow runs a query in PostgreSQL that returns one row. It is the QueryRowContext method of
// *sql.DB, *sql.Conn and *sql.Tx, or the QueryRow method of what pgx has for these.
type QueryRow[S Scanner] func(ctx context.Context, query string, args ...any) S

// SubmitTx submits a command in a transaction of the application's own database, in which
// Lucius has its jobs, and returns the command's id:
//
//	id, err := lucius.SubmitTx(ctx, tx.QueryRowContext, command) // *sql.Tx
//	id, err := lucius.SubmitTx(ctx, tx.QueryRow, command)        // pgx.Tx
//
// There will be one job if the transaction is committed, and none if it is not. Without an
// IdempotencyKey each call is a job of its own, also if the contents are equal. The error wraps
// an [Error] that names the fields if the command can never be a job; the transaction has then
// failed. The server makes all other checks after the commit: [SubmissionOf] tells whether it
// refused the command.
func SubmitTx[S Scanner](ctx context.Context, query QueryRow[S], command Command) (id string, err error) {
	body, err := json.Marshal(prepared(command))
	if err != nil {
		return "", fmt.Errorf("submit in a transaction: %w", err)
	}
	if err := query(ctx, "SELECT lucius.submit($1::text::jsonb)::text", string(body)).Scan(&id); err != nil {
		return "", fmt.Errorf("submit in a transaction: %w", refusalOf(err))
	}
	return id, nil
}

// commandRefused is the SQLSTATE of a command that can never be a job.
const commandRefused = "LC002"

// refusalOf returns the [Error] of a command that the database refused, or err if it did not.
// The drivers of PostgreSQL have the problem in the field Detail of their errors.
func refusalOf(err error) error {
	answer, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	if !ok || answer.SQLState() != commandRefused {
		return err
	}
	refused := &Error{}
	if value := reflect.Indirect(reflect.ValueOf(answer)); value.Kind() == reflect.Struct {
		if detail := value.FieldByName("Detail"); detail.Kind() == reflect.String &&
			json.Unmarshal([]byte(detail.String()), &refused.Problem) == nil {
			return refused
		}
	}
	return err
}

// SubmissionState is what became of a command that was submitted in a transaction.
type SubmissionState string

// The states. A command ends as accepted or discarded.
const (
	SubmissionWaiting   SubmissionState = "waiting"   // not accepted yet, for the Problem given if it was tried
	SubmissionRefused   SubmissionState = "refused"   // for the Problem given, until an operator retries or discards it
	SubmissionAccepted  SubmissionState = "accepted"  // a job, whose state is JobState
	SubmissionDiscarded SubmissionState = "discarded" // by an operator: it will never be a job
)

// Submission is a command that was submitted in a transaction.
type Submission struct {
	State   SubmissionState    `json:"state"`
	Problem *SubmissionProblem `json:"problem"`
	// JobID and what follows it are those of the job of an accepted command.
	JobID        string          `json:"job_id"`
	JobState     JobState        `json:"job_state"`
	FinalOutput  json.RawMessage `json:"final_output"`
	ErrorCode    string          `json:"error_code"`
	ErrorMessage string          `json:"error_message"`
}

// SubmissionProblem is why a command was refused or has to wait.
type SubmissionProblem struct {
	Code   string      `json:"code"`
	Detail string      `json:"detail"`
	Errors []Violation `json:"errors"`
	// Discarded is the operator's reason, if one discarded the command.
	Discarded string `json:"discarded"`
}

// ErrNoSubmission is returned when no command has the id, when the role may not see the
// command, and when the command was deleted with its job.
var ErrNoSubmission = errors.New("there is no such command")

// SubmissionOf reads what became of a command, by the id that [SubmitTx] returned. The error
// wraps [ErrNoSubmission] if there is none.
func SubmissionOf[S Scanner](ctx context.Context, query QueryRow[S], id string) (*Submission, error) {
	var text *string
	const sql = "SELECT (SELECT to_json(r)::text FROM lucius.result($1::text::uuid) r)"
	if err := query(ctx, sql, id).Scan(&text); err != nil {
		return nil, fmt.Errorf("command %s: %w", id, err)
	}
	if text == nil {
		return nil, fmt.Errorf("command %s: %w", id, ErrNoSubmission)
	}
	var found Submission
	if err := json.Unmarshal([]byte(*text), &found); err != nil {
		return nil, fmt.Errorf("command %s: %w", id, err)
	}
	return &found, nil
}
