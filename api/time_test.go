package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

func TestTimeIsWrittenInUTCWithMilliseconds(t *testing.T) {
	t.Parallel()
	berlin := time.FixedZone("CET", 3600)
	for _, test := range []struct {
		name string
		time time.Time
		want string
	}{
		{"whole seconds keep their zeros", time.Date(2026, 1, 27, 10, 2, 0, 0, time.UTC), `"2026-01-27T10:02:00.000Z"`},
		{"smaller units are cut off", time.Date(2026, 1, 27, 10, 2, 0, 999_999_999, time.UTC), `"2026-01-27T10:02:00.999Z"`},
		{"another zone becomes UTC", time.Date(2026, 1, 27, 11, 2, 0, 5_000_000, berlin), `"2026-01-27T10:02:00.005Z"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := json.Marshal(api.NewTime(test.time))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestTimeIsReadInAnyRFC3339Form(t *testing.T) {
	t.Parallel()
	want := time.Date(2026, 1, 27, 10, 2, 0, 0, time.UTC)
	for _, text := range []string{
		"2026-01-27T10:02:00Z", "2026-01-27T10:02:00.000Z", "2026-01-27T10:02:00.000000000Z", "2026-01-27T11:02:00+01:00",
	} {
		var got api.Time
		if err := json.Unmarshal([]byte(`"`+text+`"`), &got); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if !got.Equal(want) {
			t.Errorf("%s is read as %s", text, got)
		}
	}
}

// What the server shows of a time, clients must be able to read: it is in UTC, in which the
// year may differ.
func TestTimeIsRefusedIfItsYearInUTCHasNotFourDigits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0000-01-01T01:00:00+01:00": "0000-01-01T00:00:00.000Z", "9999-12-31T22:59:59.999-01:00": "9999-12-31T23:59:59.999Z",
		"0000-01-01T00:59:59+01:00": "", "9999-12-31T23:00:00-01:00": "",
	} {
		var bound, decoded api.Time
		bindErr, decodeErr := bound.Bind(text), json.Unmarshal([]byte(`"`+text+`"`), &decoded)
		if (bindErr != nil) != (want == "") || (decodeErr != nil) != (want == "") {
			t.Errorf("%s: errors %v and %v", text, bindErr, decodeErr)
		} else if want != "" && (bound.String() != want || decoded.String() != want) {
			t.Errorf("%s is read as %s and %s", text, bound, decoded)
		}
	}
}

func TestTimeNullLeavesItUnset(t *testing.T) {
	t.Parallel()
	var got api.Time
	if err := json.Unmarshal([]byte("null"), &got); err != nil || !got.IsZero() {
		t.Errorf("null is read as %s, %v", got, err)
	}
}

func TestTimeRefusesAnythingElseAndNamesTheField(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		`"yesterday"`, `"2026-01-27"`, `"2026-01-27T10:02:00"`, `1769508120`, `{}`, `""`,
		`"0000-01-01T00:59:59+01:00"`, `"9999-12-31T23:00:00-01:00"`,
	} {
		var lease struct {
			Lease api.WorkLease `json:"lease"`
		}
		err := json.Unmarshal([]byte(`{"lease":{"expires_at":`+value+`}}`), &lease)
		wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err)
		if !ok {
			t.Errorf("%s: error %v, want an UnmarshalTypeError", value, err)
			continue
		}
		if wrongType.Field != "lease.expires_at" {
			t.Errorf("%s: the error names field %q", value, wrongType.Field)
		}
	}
}

func TestUnsetTimesAreOmitted(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(api.CallbackOutcome{
		Outcome: api.OutcomeApplied, JobState: api.JobStateSucceeded, StepState: api.StepStateSucceeded,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"cancel_requested":false,"job_state":"SUCCEEDED","outcome":"applied","pause_requested":false,"step_state":"SUCCEEDED"}`
	if string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func ExampleTime() {
	fmt.Println(api.NewTime(time.Date(2026, 1, 27, 10, 2, 0, 1_500_000, time.UTC)))
	// Output: 2026-01-27T10:02:00.001Z
}

// The server reads back the whole time that the client sent in a query, not its day.
func TestTimeIsSentWholeInQueries(t *testing.T) {
	t.Parallel()
	berlin := time.FixedZone("CET", 3600)
	after := api.NewTime(time.Date(2026, 1, 27, 11, 2, 3, 4_000_000, berlin))
	request, err := api.NewListJobsRequest("http://localhost", &api.ListJobsParams{CreatedAfter: &after})
	if err != nil {
		t.Fatal(err)
	}
	var got api.Time
	if err := got.Bind(request.URL.Query().Get("created_after")); err != nil || !got.Equal(after.Time) {
		t.Errorf("%s is sent: %v", request.URL.RawQuery, err)
	}
}
