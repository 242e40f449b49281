package servicebus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// morgue is a namespace with two reply topics, whose dead letters a test lists, replays
// and purges.
type morgue struct {
	*servicebus.DeadLetters

	peer   *fakeservicebus.Server
	client *azservicebus.Client
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
	if m.DeadLetters, err = servicebus.NewDeadLetters(servicebus.ReplyTopics{
		Namespace: servicebus.Namespace{Connection: m.peer.ConnectionString()}, Lanes: 2,
		Prefix: "global-bus-replies-p", Subscription: "lucius-invoker",
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waittest.Bound(t))
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

// ids lists all dead letters.
func (m *morgue) ids(t *testing.T) (ids []string) {
	t.Helper()
	for letter, err := range m.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, letter.ID)
	}
	return ids
}

// live returns the replies that wait on the topic of lane 0.
func (m *morgue) live() []fakeservicebus.Message {
	return m.peer.Messages("global-bus-replies-p0/Subscriptions/lucius-invoker")
}

// outcomes handles dead letters, and compares the outcomes and what is left.
func (m *morgue) outcomes(t *testing.T, handle func(context.Context, []string, func(string, error)) error, ids []string,
	want map[string]string, left ...string,
) {
	t.Helper()
	got := map[string]string{}
	if err := handle(t.Context(), ids, func(id string, err error) { got[id] = fmt.Sprint(err) }); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(left, m.ids(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestDeadLetters_AreListedAndCounted reads them without changing them.
func TestDeadLetters_AreListedAndCounted(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	if got := m.ids(t); got != nil {
		t.Errorf("an empty list holds %v", got)
	}
	before := time.Now()
	m.bury(t, 1, ack(nil))
	m.bury(t, 0, strings.Fields(strings.Repeat("reply ", 101))...)
	var all []servicebus.DeadLetter
	for letter, err := range m.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, letter)
	}
	last := all[len(all)-1]
	if len(all) != 102 || !strings.HasPrefix(all[100].ID, "0-") || !strings.HasPrefix(last.ID, "1-") ||
		last.Topic != "global-bus-replies-p1" || last.MessageID != "m0" || last.Reason != "job_not_found" ||
		last.Description != "There is no such job." || string(last.Body) != ack(nil) || last.SentAt.Before(before.Add(-time.Second)) {
		t.Errorf("listed %d, the last %+v", len(all), last)
	}
	if err := m.Count(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := m.Counted(); got.Count != 102 || !got.Oldest.Equal(last.SentAt) {
		t.Errorf("counted %+v, want 102 since %s", got, last.SentAt)
	}
}

// TestDeadLetters_AreReplayed: the copy on the topic has the body, and an id of its own, since
// the topic drops messages whose id it knows.
func TestDeadLetters_AreReplayed(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, "one", ack(nil), "three")
	all := m.ids(t)
	m.outcomes(t, m.Replay, []string{all[1]}, map[string]string{all[1]: "<nil>"}, all[0], all[2]) // behind one that is not selected
	live := m.live()
	if len(live) != 1 || string(live[0].Body) != ack(nil) || live[0].ID != "m1/"+strings.TrimPrefix(all[1], "0-") ||
		live[0].Properties["DeadLetterReason"] != nil {
		t.Errorf("on the topic are %+v", live)
	}
	m.outcomes(t, m.Replay, []string{all[1]}, map[string]string{all[1]: servicebus.ErrNoDeadLetter.Error()}, all[0], all[2])
}

// TestDeadLetters_OfOtherBodies: a copy has the whole body of a reply whose body is text, or data
// in several sections. A reply with another body stays.
func TestDeadLetters_OfOtherBodies(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	bodies := []azservicebus.AMQPAnnotatedMessageBody{{Value: "text"}, {Data: [][]byte{[]byte("in "), []byte("two")}}, {Value: int64(1)}}
	sender, err := m.client.NewSender("global-bus-replies-p0", nil)
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := m.client.NewReceiverForSubscription("global-bus-replies-p0", "lucius-invoker", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range bodies {
		if err := sender.SendAMQPAnnotatedMessage(t.Context(), &azservicebus.AMQPAnnotatedMessage{Body: body}, nil); err != nil {
			t.Fatal(err)
		}
		got, err := receiver.ReceiveMessages(t.Context(), 1, nil)
		if err != nil || len(got) != 1 || receiver.DeadLetterMessage(t.Context(), got[0], nil) != nil {
			t.Fatalf("%d messages: %v", len(got), err)
		}
	}
	if err := receiver.Close(t.Context()); err != nil {
		t.Error(err)
	}
	var shown []string
	for letter, err := range m.All(t.Context()) {
		shown = append(shown, fmt.Sprint(string(letter.Body), err))
	}
	if diff := cmp.Diff([]string{"text<nil>", "in two<nil>", "<nil>"}, shown); diff != "" {
		t.Errorf("bodies (-want +got):\n%s", diff)
	}
	all := m.ids(t)
	m.outcomes(t, m.Replay, all, map[string]string{
		all[0]: "<nil>", all[1]: "<nil>", all[2]: "its body is neither data nor text, so it cannot be sent again: purge it",
	}, all[2])
	if live := m.live(); len(live) != 2 || string(live[0].Body) != "text" || string(live[1].Body) != "in two" {
		t.Errorf("on the topic are %+v", live)
	}
}

// TestDeadLetters_ArePurged purges by id, or all of them.
func TestDeadLetters_ArePurged(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, strings.Fields(strings.Repeat("reply ", 40))...)
	m.bury(t, 1, "other")
	all := m.ids(t)
	m.outcomes(t, m.Purge, []string{all[40], all[20]}, map[string]string{all[40]: "<nil>", all[20]: "<nil>"},
		append(all[:20:20], all[21:40]...)...)
	want := map[string]string{}
	for _, id := range m.ids(t) {
		want[id] = "<nil>"
	}
	m.outcomes(t, m.Purge, m.ids(t), want)
}

// TestDeadLetters_StayWhenTheyCannotBeHandled: a letter stays if its copy cannot be sent, or
// if it cannot be deleted after that.
func TestDeadLetters_StayWhenTheyCannotBeHandled(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, ack(nil))
	all := m.ids(t)
	m.peer.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault {
		return fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.NotAllowed}
	}})
	handled := 0
	if err := m.Replay(t.Context(), all, func(_ string, err error) {
		if handled++; err == nil || !strings.Contains(err.Error(), "not-allowed") {
			t.Errorf("the copy cannot be sent: %v", err)
		}
	}); err != nil || handled != 1 {
		t.Errorf("handled %d: %v", handled, err)
	}
	m.peer.SetHooks(fakeservicebus.Hooks{OnSettle: func(string) *fakeservicebus.Refusal {
		return &fakeservicebus.Refusal{Condition: fakeservicebus.MessageLockLost}
	}})
	if err := m.Replay(t.Context(), all, func(_ string, err error) {
		if err == nil || !strings.Contains(err.Error(), "could not be deleted") {
			t.Errorf("the letter cannot be deleted: %v", err)
		}
	}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(all, m.ids(t)); diff != "" || len(m.live()) != 1 {
		t.Errorf("%d on the topic, left (-want +got):\n%s", len(m.live()), diff)
	}
}

// TestDeadLetters_AreCountedAfterTheTopicIsBack: a topic that is disabled or deleted closes its
// links. Once it is back, its letters are counted.
func TestDeadLetters_AreCountedAfterTheTopicIsBack(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{
		fakeservicebus.EntityDisabled, fakeservicebus.NotFound, fakeservicebus.UnauthorizedAccess, fakeservicebus.DetachForced,
	} {
		t.Run(condition, func(t *testing.T) {
			t.Parallel()
			m := newMorgue(t)
			m.bury(t, 0, "one")
			if err := m.Count(t.Context()); err != nil || m.Counted().Count != 1 {
				t.Fatalf("at first %d: %v", m.Counted().Count, err)
			}
			m.peer.SetHooks(fakeservicebus.Hooks{OnRequest: func(string, string) fakeservicebus.Fault {
				return fakeservicebus.Fault{Effect: fakeservicebus.Detach, Condition: condition, Description: "Disabled."}
			}})
			if err := m.Count(t.Context()); err == nil {
				t.Error("counted while the topic closes the link")
			}
			m.peer.SetHooks(fakeservicebus.Hooks{})
			m.bury(t, 0, "two")
			if err := m.Count(t.Context()); err != nil || m.Counted().Count != 2 {
				t.Errorf("afterwards %d: %v", m.Counted().Count, err)
			}
		})
	}
}

// TestDeadLetters_OfOtherTopics: a topic that cannot be read hides no letters of the topics after
// it, unless the bus cannot be reached.
func TestDeadLetters_OfOtherTopics(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, "one")
	m.bury(t, 1, "two", "three")
	all := m.ids(t)
	m.peer.SetHooks(fakeservicebus.Hooks{OnAttach: func(address string) *fakeservicebus.Refusal {
		if strings.Contains(address, "global-bus-replies-p0") {
			return &fakeservicebus.Refusal{Condition: fakeservicebus.EntityDisabled, Description: "Disabled."}
		}
		return nil
	}})
	again, err := servicebus.NewDeadLetters(servicebus.ReplyTopics{ // Its links are not open yet.
		Namespace: servicebus.Namespace{Connection: m.peer.ConnectionString()}, Lanes: 2,
		Prefix: "global-bus-replies-p", Subscription: "lucius-invoker",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = again.Close(context.WithoutCancel(t.Context())) })
	listed := func() (list []string) {
		for letter, err := range again.All(t.Context()) {
			if err != nil {
				list = append(list, err.Error()[:len("the dead letters of global-bus-replies-p0")])
			} else {
				list = append(list, letter.ID)
			}
		}
		return list
	}
	if diff := cmp.Diff([]string{"the dead letters of global-bus-replies-p0", all[1], all[2]}, listed()); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	handled := map[string]error{}
	err = again.Replay(t.Context(), all, func(id string, err error) { handled[id] = err })
	if diff := cmp.Diff(map[string]error{all[1]: nil, all[2]: nil}, handled); diff != "" || err == nil || !strings.Contains(err.Error(), "replies-p0") {
		t.Errorf("handled (-want +got):\n%s\n%v", diff, err)
	}
	m.peer.Stop()
	if diff := cmp.Diff([]string{"the dead letters of global-bus-replies-p0"}, listed()); diff != "" {
		t.Errorf("listed without the bus (-want +got):\n%s", diff)
	}
}

// TestDeadLetters_StopWithTheirCaller: an interrupted command handles no further letters.
func TestDeadLetters_StopWithTheirCaller(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, "one", "two", "three")
	all := m.ids(t)
	ctx, leave := context.WithCancel(t.Context())
	handled := 0
	err := m.Purge(ctx, all, func(string, error) { handled++; leave() })
	if !errors.Is(err, context.Canceled) || handled != 1 {
		t.Errorf("handled %d: %v", handled, err)
	}
	if diff := cmp.Diff(all[1:], m.ids(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestDeadLetters_Refuse: invalid ids are refused, and an unreachable bus is reported.
func TestDeadLetters_Refuse(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	none := func(string, error) { t.Error("a dead letter was handled") }
	for _, id := range []string{"", "0", "0-", "-1", "2-1", "0-x", "-1-1", "0-9999999999999999999"} {
		if err := m.Replay(t.Context(), []string{id}, none); err == nil || !strings.Contains(err.Error(), "there is no dead letter") {
			t.Errorf("replay of %q: %v", id, err)
		}
	}
	m.peer.Stop()
	for name, err := range map[string]error{"purge": m.Purge(t.Context(), []string{"0-1"}, none), "count": m.Count(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "the dead letters of global-bus-replies-p0 cannot be read") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := servicebus.NewDeadLetters(servicebus.ReplyTopics{}); err == nil {
		t.Error("no topics are accepted")
	}
}

// A dead letter is deleted although the connection that delivered it was cut in the meantime.
func TestDeadLetters_AreDeletedAfterAnOutage(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.bury(t, 0, "one", "two")
	first := true
	m.outcomes(t, func(ctx context.Context, ids []string, told func(string, error)) error {
		return m.Purge(ctx, ids, func(id string, err error) {
			if told(id, err); first {
				m.peer.Stop()
				if err := m.peer.Restart(); err != nil {
					t.Error(err)
				}
			}
			first = false
		})
	}, m.ids(t), map[string]string{m.ids(t)[0]: "<nil>", m.ids(t)[1]: "<nil>"})
}
