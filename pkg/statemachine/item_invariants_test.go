package statemachine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// required is the source's list of invariants: the fields that must be present; the others
// of the four must be absent.
var required = map[statemachine.ItemStatus][]string{
	"queued":    {},
	"claimed":   {"owner", "lease"},
	"running":   {"owner", "lease"},
	"succeeded": {"result"},
	"failed":    {"error"},
	"stalled":   {},
}

// fields sets and clears each of the four fields.
var itemFields = map[string]struct{ set, unset func(*statemachine.Item) }{
	"owner": {func(i *statemachine.Item) { i.Owner = anna }, func(i *statemachine.Item) { i.Owner = "" }},
	"lease": {
		func(i *statemachine.Item) { i.LeaseExpiresAt = itemT0 },
		func(i *statemachine.Item) { i.LeaseExpiresAt = time.Time{} },
	},
	"result": {func(i *statemachine.Item) { i.Result = itemResult }, func(i *statemachine.Item) { i.Result = nil }},
	"error": {
		func(i *statemachine.Item) { i.Error = &statemachine.ItemFailure{Code: "x"} },
		func(i *statemachine.Item) { i.Error = nil },
	},
}

// violated returns the fields that the error names.
func violated(t testing.TB, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var broken *statemachine.ItemError
	if !errors.As(err, &broken) || !errors.Is(err, statemachine.ErrInvalidItem) {
		t.Fatalf("error is %v, want an ItemError", err)
	}
	var names []string
	for _, violation := range broken.Violations {
		names = append(names, violation.Field)
	}
	return names
}

func TestEachStatusHasWhatItMustAndNothingElse(t *testing.T) {
	t.Parallel()
	for status, want := range required {
		for field, change := range itemFields {
			t.Run(fmt.Sprintf("%s %s", status, field), func(t *testing.T) {
				t.Parallel()
				item := in(t, status)
				change.set(&item)
				if ok := slices.Contains(want, field); ok {
					if err := statemachine.ValidateItem(item); err != nil {
						t.Errorf("with it: %v", err)
					}
					change.unset(&item)
				}
				if diff := cmp.Diff([]string{field}, violated(t, statemachine.ValidateItem(item))); diff != "" {
					t.Errorf("violations (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	spoilMemory := func(n int, spoil func(*statemachine.Remembered)) func(*statemachine.Item) {
		return func(i *statemachine.Item) { spoil(&i.Requests[n]) }
	}
	for name, c := range map[string]struct {
		spoil func(*statemachine.Item)
		want  []string
	}{
		"nothing":             {func(*statemachine.Item) {}, nil},
		"no work id":          {func(i *statemachine.Item) { i.WorkID = "" }, []string{"work_id"}},
		"no dedupe key":       {func(i *statemachine.Item) { i.DedupeKey = "" }, []string{"dedupe_key"}},
		"no message id":       {func(i *statemachine.Item) { i.MessageID = "" }, []string{"message_id"}},
		"no attempt no":       {func(i *statemachine.Item) { i.AttemptNo = 0 }, []string{"attempt_no"}},
		"no lease id":         {func(i *statemachine.Item) { i.LeaseID = "" }, []string{"lease_id"}},
		"no creation":         {func(i *statemachine.Item) { i.CreatedAt = time.Time{} }, []string{"created_at"}},
		"no update":           {func(i *statemachine.Item) { i.UpdatedAt = time.Time{} }, []string{"updated_at"}},
		"no such status":      {func(i *statemachine.Item) { i.Status = "lost" }, []string{"status"}},
		"no status":           {func(i *statemachine.Item) { i.Status = "" }, []string{"status"}},
		"never claimed":       {func(i *statemachine.Item) { i.Attempt, i.Requests = 0, nil }, []string{"attempt"}},
		"negative attempt":    {func(i *statemachine.Item) { i.Attempt, i.Requests = -1, nil }, []string{"attempt", "attempt"}},
		"no rev":              {func(i *statemachine.Item) { i.Rev, i.Requests = 0, nil }, []string{"rev", "rev"}},
		"rev below attempt":   {func(i *statemachine.Item) { i.Attempt = 5 }, []string{"rev"}},
		"several":             {func(i *statemachine.Item) { i.Owner, i.LeaseID = "", "" }, []string{"lease_id", "owner"}},
		"request of no actor": {spoilMemory(0, func(r *statemachine.Remembered) { r.Actor = "" }), []string{"requests[0]"}},
		"request without id":  {spoilMemory(1, func(r *statemachine.Remembered) { r.RequestID = "" }), []string{"requests[1]"}},
		"request for nothing": {spoilMemory(1, func(r *statemachine.Remembered) { r.Operation = "" }), []string{"requests[1]"}},
		"request to come":     {spoilMemory(1, func(r *statemachine.Remembered) { r.Rev = 9 }), []string{"requests[1]"}},
		"request out of line": {spoilMemory(1, func(r *statemachine.Remembered) { r.Rev = 1 }), []string{"requests[1]"}},
		"request of one rev":  {spoilMemory(1, func(r *statemachine.Remembered) { r.Rev = 2 }), []string{"requests[1]"}},
		"request of later":    {spoilMemory(1, func(r *statemachine.Remembered) { r.Attempt = 2 }), []string{"requests[1]"}},
		"request for ever":    {spoilMemory(0, func(r *statemachine.Remembered) { r.ExpiresAt = time.Time{} }), []string{"requests[0]"}},
		"request twice": {
			spoilMemory(1, func(r *statemachine.Remembered) { r.RequestID = "anna-1" }), []string{"requests[1]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			item := in(t, "running")
			c.spoil(&item)
			if diff := cmp.Diff(c.want, violated(t, statemachine.ValidateItem(item))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateLooksIntoTheEnd(t *testing.T) {
	t.Parallel()
	succeeded, failed := in(t, "succeeded"), in(t, "failed")
	for _, bad := range []string{`[]`, `"x"`, `{`, `null`} {
		succeeded.Result = json.RawMessage(bad)
		if diff := cmp.Diff([]string{"result"}, violated(t, statemachine.ValidateItem(succeeded))); diff != "" {
			t.Errorf("result %s (-want +got):\n%s", bad, diff)
		}
	}
	failed.Error = &statemachine.ItemFailure{Message: "no code"}
	if diff := cmp.Diff([]string{"error.code"}, violated(t, statemachine.ValidateItem(failed))); diff != "" {
		t.Errorf("failure (-want +got):\n%s", diff)
	}
}

func TestValidateBoundsTheMemory(t *testing.T) {
	t.Parallel()
	item := in(t, "running")
	item.Rev, item.Requests = 1000, nil
	for n := range statemachine.MaxRemembered + 1 {
		item.Requests = append(item.Requests, statemachine.Remembered{
			Actor: anna, RequestID: fmt.Sprint("r", n), Operation: "heartbeat", Rev: int64(n + 1), ExpiresAt: itemT0,
		})
	}
	if diff := cmp.Diff([]string{"requests"}, violated(t, statemachine.ValidateItem(item))); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
}

func TestAnInvalidItemsErrorIsASentence(t *testing.T) {
	t.Parallel()
	item := in(t, "running")
	item.Owner, item.LeaseExpiresAt = "", time.Time{}
	err := statemachine.ValidateItem(item)
	const want = `invalid work item: "work-1", running: owner must be present when running; lease must be present when running`
	if err == nil || err.Error() != want {
		t.Errorf("error is %v\nwant %s", err, want)
	}
	_, err = statemachine.StartItem(item, statemachine.ItemRequest{}, itemT0, itemT0)
	if err == nil || !strings.HasSuffix(err.Error(), "invalid request: owner is required") {
		t.Errorf("error is %v", err)
	}
}
