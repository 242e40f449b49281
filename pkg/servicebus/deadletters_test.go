package servicebus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// morgue is a namespace with two reply topics, whose dead letters a test lists, replays
// and purges.
type morgue struct {
	*servicebus.DeadLetters

	peer   *fakeservicebus.Server
	client *azservicebus.Client
	answer func(callbacks.Callback) (callbacks.Answer, error) // Of the ledger. Optional.
}

func newMorgue(t *testing.T) *morgue {
	t.Helper()
	m := &morgue{peer: namespaceOnWire(t, func(cfg *fakeservicebus.Config) {
		cfg.Topics = append(cfg.Topics, fakeservicebus.Topic{
			Name: "global-bus-replies-p1", Subscriptions: []fakeservicebus.Subscription{{Name: "lucius-invoker"}},
		})
	})}
	var err error
	if m.client, err = azservicebus.NewClientFromConnectionString(m.peer.ConnectionString(), nil); err != nil {
		t.Fatal(err)
	}
	if m.DeadLetters, err = servicebus.NewDeadLetters(servicebus.RepliesConfig{
		Namespace: servicebus.Namespace{Connection: m.peer.ConnectionString()}, Lanes: 2,
		Prefix: "global-bus-replies-p", Subscription: "lucius-invoker", InHand: 4,
		Apply: func(_ context.Context, c callbacks.Callback) (callbacks.Answer, error) {
			if m.answer == nil {
				return callbacks.Answer{Outcome: statemachine.Applied}, nil
			}
			return m.answer(c)
		},
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := m.client.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return m
}

// bury sends replies to a lane and dead-letters them.
func (m *morgue) bury(t *testing.T, lane int, bodies ...string) {
	t.Helper()
	topic := fmt.Sprint("global-bus-replies-p", lane)
	sender, err := m.client.NewSender(topic, nil)
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := m.client.NewReceiverForSubscription(topic, "lucius-invoker", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range bodies {
		id := "m" + fmt.Sprint(m.peer.Accepted())
		if err := sender.SendMessage(t.Context(), &azservicebus.Message{MessageID: &id, Body: []byte(body)}, nil); err != nil {
			t.Fatal(err)
		}
		got, err := receiver.ReceiveMessages(t.Context(), 1, nil)
		if err != nil || len(got) != 1 {
			t.Fatalf("%d messages: %v", len(got), err)
		}
		reason, description := "job_not_found", "There is no such job."
		if err := receiver.DeadLetterMessage(t.Context(), got[0],
			&azservicebus.DeadLetterOptions{Reason: &reason, ErrorDescription: &description}); err != nil {
			t.Fatal(err)
		}
	}
	if err := receiver.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := sender.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// ids lists all dead letters, a number at a time.
func (m *morgue) ids(t *testing.T, limit int) (ids []string) {
	t.Helper()
	for after, pages := "", 0; ; pages++ {
		page, next, err := m.List(t.Context(), limit, after)
		if err != nil || len(page) > limit || pages > 100 {
			t.Fatalf("a page of %d: %v", len(page), err)
		}
		for i := range page {
			ids = append(ids, page[i].ID)
		}
		if after = next; next == "" {
			return ids
		}
	}
}

func (m *morgue) expect(t *testing.T, when string, handled []callbacks.HandledDeadLetter, err error, want ...string) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", when, err)
	}
	var got []string
	for _, h := range handled {
		line := h.ID + " " + string(h.Outcome)
		if h.Cause != nil {
			line += " " + string(h.Cause.Code)
		}
		got = append(got, line)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// TestDeadLetters_AreListedAndCounted reads them without changing them.
func TestDeadLetters_AreListedAndCounted(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	if got := m.ids(t, 10); got != nil {
		t.Errorf("an empty list holds %v", got)
	}
	before := time.Now()
	m.bury(t, 1, ack(nil))
	m.bury(t, 0, "one", "two", "three")
	for _, limit := range []int{1, 2, 3, 4, 500} {
		got := m.ids(t, limit)
		if len(got) != 4 || !strings.HasPrefix(got[2], "0-") || !strings.HasPrefix(got[3], "1-") {
			t.Errorf("%d at a time: %v", limit, got)
		}
	}
	page, _, err := m.List(t.Context(), 10, "")
	if err != nil {
		t.Fatal(err)
	}
	last := page[3]
	if last.Lane != 1 || last.Topic != "global-bus-replies-p1" || last.MessageID != "m0" || last.Reason != "job_not_found" ||
		last.Description != "There is no such job." || string(last.Body) != ack(nil) || last.SentAt.Before(before.Add(-time.Second)) {
		t.Errorf("listed %+v", last)
	}
	if err := m.Count(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := m.Survey(); got.Count != 4 || !got.Oldest.Equal(last.SentAt) {
		t.Errorf("surveyed %+v, want 4 since %s", got, last.SentAt)
	}
}

// TestDeadLetters_AreReplayed checks the effect of each answer of the ledger: letters that
// it has applied or will never accept are deleted; the others stay and can be replayed
// again.
func TestDeadLetters_AreReplayed(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	answers := map[string]error{
		"stale": &apierror.Error{Code: apierror.StaleAttempt}, "unknown": &apierror.Error{Code: apierror.JobNotFound},
		"unlucky": &apierror.Error{Code: apierror.StoreUnavailable},
	}
	m.answer = func(c callbacks.Callback) (callbacks.Answer, error) {
		if c.Caller != "global-bus-replies-p0" {
			t.Errorf("the reply is recorded as one of %q, want its topic", c.Caller)
		}
		if c.JobID == "again" {
			return callbacks.Answer{Outcome: statemachine.Duplicate}, nil
		}
		return callbacks.Answer{Outcome: statemachine.Applied}, answers[c.JobID]
	}
	for _, job := range []string{"good", "again", "stale", "unknown", "unlucky"} {
		m.bury(t, 0, ack(map[string]any{"jobId": job}))
	}
	m.bury(t, 0, "not JSON")
	all := m.ids(t, 10)
	handled, more, err := m.Replay(t.Context(), nil)
	m.expect(t, "replay", handled, err, all[0]+" applied", all[1]+" duplicate", all[2]+" refused stale_attempt",
		all[3]+" kept job_not_found", all[4]+" kept store_unavailable", all[5]+" kept invalid_json")
	if diff := cmp.Diff(all[3:], m.ids(t, 10)); diff != "" || more {
		t.Errorf("left, more %t (-want +got):\n%s", more, diff)
	}
	delete(answers, "unlucky")
	handled, _, err = m.Replay(t.Context(), []string{all[4], all[0], all[4]}) // behind a letter that is not selected
	m.expect(t, "replay by id", handled, err, all[4]+" applied", all[0]+" absent")
	if diff := cmp.Diff([]string{all[3], all[5]}, m.ids(t, 10)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestDeadLetters_OutlastASlowStore: each letter is applied as soon as it is locked, so no
// lock ends while its letter waits for others.
func TestDeadLetters_OutlastASlowStore(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	for i := range 8 {
		m.bury(t, 0, ack(map[string]any{"jobId": fmt.Sprint(i)}))
	}
	var begun atomic.Int32
	waiting := func() bool { // reports whether a letter was delivered but not applied yet
		delivered := 8
		for _, letter := range m.peer.Messages("global-bus-replies-p0/Subscriptions/lucius-invoker/$DeadLetterQueue") {
			if !letter.Locked {
				delivered--
			}
		}
		return int(begun.Load()) < delivered
	}
	m.answer = func(callbacks.Callback) (callbacks.Answer, error) {
		begun.Add(1)
		for end := time.Now().Add(time.Minute); waiting(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Error("a locked letter waits for others")
				break
			}
		}
		return callbacks.Answer{Outcome: statemachine.Applied}, nil
	}
	all := m.ids(t, 10)
	handled, more, err := m.Replay(t.Context(), nil)
	for i := range all {
		all[i] += " applied"
	}
	if m.expect(t, "replay", handled, err, all...); more || m.ids(t, 10) != nil {
		t.Errorf("more %t, left %v", more, m.ids(t, 10))
	}
}

// TestDeadLetters_AnswerInTime: letters that are not reached in time stay, and the answer
// says so.
func TestDeadLetters_AnswerInTime(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, "one")
	all := m.ids(t, 10)
	m.HandleFor(0)
	handled, _, err := m.Purge(t.Context(), all)
	m.expect(t, "purge", handled, err, all[0]+" kept bus_unavailable")
	if diff := cmp.Diff(all, m.ids(t, 10)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestDeadLetters_StopWithTheirCaller: if the caller disconnects, applied letters are
// deleted, and only those in progress are still handled.
func TestDeadLetters_StopWithTheirCaller(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, strings.Fields(strings.Repeat(ack(nil)+" ", 5))...)
	all := m.ids(t, 10)
	ctx, leave := context.WithCancel(t.Context())
	m.answer = func(callbacks.Callback) (callbacks.Answer, error) {
		leave()
		return callbacks.Answer{Outcome: statemachine.Applied}, nil
	}
	handled, more, err := m.Replay(ctx, nil)
	if !errors.Is(err, context.Canceled) || !more {
		t.Errorf("replay: more %t, %v", more, err)
	}
	n := len(handled)
	if n == 0 || n > 4 {
		t.Fatalf("handled %d, with 4 in hand at most", n)
	}
	if diff := cmp.Diff(all[n:], m.ids(t, 10)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestDeadLetters_ArePurged purges by id, or all of them a hundred at a time.
func TestDeadLetters_ArePurged(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, strings.Fields(strings.Repeat("reply ", 101))...)
	m.bury(t, 1, "other")
	all := m.ids(t, 500)
	handled, _, err := m.Purge(t.Context(), []string{all[101], all[50]})
	m.expect(t, "purge by id", handled, err, all[50]+" purged", all[101]+" purged")
	handled, more, err := m.Purge(t.Context(), nil)
	if len(handled) != callbacks.MaxDeadLetters || more || err != nil || m.ids(t, 10) != nil {
		t.Errorf("purged %d, more %t, %v, left %v", len(handled), more, err, m.ids(t, 10))
	}
}

// TestDeadLetters_StayWhenTheyCannotBeDeleted: the answer says so for each letter, although
// its reply was applied.
func TestDeadLetters_StayWhenTheyCannotBeDeleted(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, ack(nil))
	all := m.ids(t, 10)
	m.peer.SetHooks(fakeservicebus.Hooks{OnSettle: func(string) *fakeservicebus.Refusal {
		return &fakeservicebus.Refusal{Condition: fakeservicebus.MessageLockLost}
	}})
	handled, _, err := m.Replay(t.Context(), all)
	m.expect(t, "replay", handled, err, all[0]+" kept bus_unavailable")
	if diff := cmp.Diff(all, m.ids(t, 10)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestDeadLetters_Refuse: invalid ids are refused, and an unreachable bus is reported.
func TestDeadLetters_Refuse(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	for _, id := range []string{"", "0", "0-", "-1", "2-1", "0-x", "00-1", "0-01", "-1-1", "0--1", "0-9999999999999999999"} {
		if _, _, err := m.Replay(t.Context(), []string{id}); apierror.From(err).Code != apierror.InvalidEnvelope {
			t.Errorf("replay of %q: %v", id, err)
		}
	}
	m.peer.Stop()
	_, _, listing := m.List(t.Context(), 10, "")
	_, _, purging := m.Purge(t.Context(), []string{"0-1"})
	for name, err := range map[string]error{"list": listing, "purge": purging, "count": m.Count(t.Context())} {
		if told := apierror.From(err); told.Code != apierror.BusUnavailable || told.RetryAfter == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A dead letter that was applied is deleted although the connection that delivered it was
// cut in the meantime.
func TestDeadLetters_AreDeletedAfterAnOutage(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, replyBody("ACK", "s"))
	m.answer = func(callbacks.Callback) (callbacks.Answer, error) {
		m.peer.Stop()
		return callbacks.Answer{Outcome: statemachine.Applied}, m.peer.Restart()
	}
	ids := m.ids(t, 10)
	handled, _, err := m.Replay(t.Context(), ids)
	m.expect(t, "a replay", handled, err, ids[0]+" applied")
	if left := m.peer.Depth(wireInvoker + "/$DeadLetterQueue"); left != 0 {
		t.Errorf("%d dead letters are left", left)
	}
}
