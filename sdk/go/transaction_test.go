package lucius_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// row is the answer of a database: one text, or NULL.
type row struct {
	text *string
	err  error
}

func (r row) Scan(into ...any) error {
	switch at := into[0].(type) {
	case *string:
		*at = *r.text
	case **string:
		*at = r.text
	}
	return r.err
}

// database answers each query with the row, and notes it.
func database(answer row, asked *[]any) lucius.QueryRow[row] {
	return func(_ context.Context, query string, args ...any) row {
		*asked = append([]any{query}, args...)
		return answer
	}
}

var errAway = errors.New("away")

// refusal is an error as the drivers of PostgreSQL return it.
type refusal struct{ Detail, state string }

func (r *refusal) Error() string    { return "refused" }
func (r *refusal) SQLState() string { return r.state }

// silent is one that does not say why.
type silent struct{}

func (silent) Error() string    { return "refused" }
func (silent) SQLState() string { return "LC002" }

func TestSubmitTx(t *testing.T) {
	t.Parallel()
	var asked []any
	id := "5b3a1d0e-8c7f-4c1b-9a51-0d6f2c3b4a59"
	command := lucius.Command{TenantID: "acme", RequestType: "doc.ingest"}
	got, err := lucius.SubmitTx(t.Context(), database(row{text: &id}, &asked), command)
	if err != nil || got != id {
		t.Fatalf("%s, %v", got, err)
	}
	var sent map[string]any
	text, _ := asked[1].(string)
	if err := json.Unmarshal([]byte(text), &sent); err != nil || sent["tenant_id"] != "acme" || sent["payload"] == nil ||
		sent["idempotency_key"] != nil || !strings.Contains(asked[0].(string), "lucius.submit($1") { //nolint:forcetypeassert // It is a query.
		t.Errorf("it sent %v: %v", asked, err)
	}
	if _, err := lucius.SubmitTx(t.Context(), database(row{text: &id, err: errAway}, &asked), command); !errors.Is(err, errAway) {
		t.Errorf("without a database: %v", err)
	}
	for _, test := range []struct {
		answer error
		want   lucius.ProblemCode
	}{
		{&refusal{Detail: `{"code": "invalid_envelope", "status": 400, "errors": [{"pointer": "/payload", "message": "is required"}]}`,
			state: "LC002"}, lucius.ProblemCodeInvalidEnvelope},
		{&refusal{Detail: `{"code": "invalid_envelope"}`, state: "42501"}, ""},
		{&refusal{Detail: `none`, state: "LC002"}, ""},
		{silent{}, ""},
	} {
		_, err := lucius.SubmitTx(t.Context(), database(row{text: &id, err: test.answer}, &asked), command)
		if refused, ok := errors.AsType[*lucius.Error](err); ok != (test.want != "") || !ok && !errors.Is(err, test.answer) ||
			ok && (refused.Code != test.want || refused.Status != 400 || refused.Errors[0].Pointer != "/payload") {
			t.Errorf("after %#v: %v", test.answer, err)
		}
	}
	command.Payload = make(chan int)
	if _, err := lucius.SubmitTx(t.Context(), database(row{text: &id}, &asked), command); err == nil {
		t.Error("a payload that is no JSON was sent")
	}
	_ = func(tx *sql.Tx) { _, _ = lucius.SubmitTx(t.Context(), tx.QueryRowContext, command) } // It compiles.
}

func TestSubmissionOf(t *testing.T) {
	t.Parallel()
	var asked []any
	text := `{"state":"refused","problem":{"code": "payload_invalid", "detail": "No.", "errors": [{"pointer": "/p", "message": "is odd"}]},` +
		`"job_id":null,"job_state":null,"final_output":null,"error_code":null,"error_message":null}`
	got, err := lucius.SubmissionOf(t.Context(), database(row{text: &text}, &asked), "c-1")
	if err != nil || got.State != lucius.SubmissionRefused || got.Problem.Code != "payload_invalid" || got.Problem.Errors[0].Pointer != "/p" ||
		got.JobID != "" || asked[1] != "c-1" {
		t.Errorf("%+v, %v", got, err)
	}
	text = `{"state":"accepted","problem":null,"job_id":"j","job_state":"SUCCEEDED","final_output":{"uri":"x"},"error_code":null}`
	got, err = lucius.SubmissionOf(t.Context(), database(row{text: &text}, &asked), "c-1")
	if err != nil || got.JobState != lucius.JobStateSucceeded || string(got.FinalOutput) != `{"uri":"x"}` || got.Problem != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := lucius.SubmissionOf(t.Context(), database(row{}, &asked), "c-1"); !errors.Is(err, lucius.ErrNoSubmission) {
		t.Errorf("without a command: %v", err)
	}
	for _, bad := range []row{{text: &text, err: errAway}, {text: new(string)}} {
		if got, err := lucius.SubmissionOf(t.Context(), database(bad, &asked), "c-1"); err == nil {
			t.Errorf("%+v", got)
		}
	}
}
