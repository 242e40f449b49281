package lucius_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

var tonight = time.Date(2026, 1, 28, 2, 0, 0, 0, time.UTC)

func TestSubmitSendsDates(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{{status: 202, body: accepted}, {status: 202, body: accepted}}}
	c := client(t, s)
	for _, command := range []lucius.Command{
		{NotBefore: tonight, NotAfter: tonight.Add(4 * time.Hour)}, {Delay: lucius.Delay(90*time.Minute + time.Millisecond)},
	} {
		if _, err := c.Submit(t.Context(), command); err != nil {
			t.Fatal(err)
		}
	}
	var got []map[string]any
	for _, request := range s.seen {
		var body map[string]any
		if err := json.Unmarshal([]byte(request.Body), &body); err != nil {
			t.Fatal(err)
		}
		sent := map[string]any{}
		for _, name := range []string{"not_before", "delay_seconds", "not_after"} {
			if value, ok := body[name]; ok {
				sent[name] = value
			}
		}
		got = append(got, sent)
	}
	want := []map[string]any{
		{"not_before": "2026-01-28T02:00:00Z", "not_after": "2026-01-28T06:00:00Z"}, {"delay_seconds": 5401.0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dates (-want +got):\n%s", diff)
	}
}

func TestADelayIsRead(t *testing.T) {
	t.Parallel()
	var command lucius.Command
	if err := json.Unmarshal([]byte(`{"delay_seconds":5400}`), &command); err != nil || command.Delay != lucius.Delay(90*time.Minute) {
		t.Errorf("%v, %v", command.Delay, err)
	}
	if err := json.Unmarshal([]byte(`{"delay_seconds":"soon"}`), &command); err == nil {
		t.Error("a text was read")
	}
}

func TestReschedule(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		dates        lucius.Dates
		reason, body string
	}{
		{lucius.Dates{NotBefore: tonight, NotAfter: tonight.Add(time.Hour)}, "late", `{"not_before":"2026-01-28T02:00:00Z","not_after":"2026-01-28T03:00:00Z","reason":"late"}`},
		{lucius.Dates{Delay: lucius.Delay(time.Minute), NeverExpires: true}, "", `{"delay_seconds":60,"never_expires":true}`},
		{lucius.Dates{Now: true}, "", `{"delay_seconds":0}`},
		{lucius.Dates{NeverExpires: true}, "", `{"never_expires":true}`},
	} {
		s := &scripted{t: t, answers: []answer{
			{status: 202, body: `{"state":"QUEUED","not_before":"2026-01-28T02:00:00.000Z"}`}, {status: 409, body: `{"status":409,"code":"illegal_transition"}`},
		}}
		c := client(t, s)
		job, err := c.Reschedule(t.Context(), "j/1", test.dates, test.reason)
		if err != nil || job.State != lucius.JobStateQueued || !job.NotBefore.Equal(tonight) {
			t.Errorf("%+v: %+v, %v", test.dates, job, err)
		}
		if diff := cmp.Diff([]seen{{"POST /v1/jobs/j%2F1:reschedule", test.body}}, s.seen); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		if _, err := c.Reschedule(t.Context(), "j1", test.dates, ""); !lucius.HasCode(err, lucius.ProblemCodeIllegalTransition) ||
			err.Error() != "reschedule job j1: the server answered 409 illegal_transition" {
			t.Errorf("error %v", err)
		}
	}
}
