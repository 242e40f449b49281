package servicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/outbox"
)

// Trial lists what a server needs on a namespace.
type Trial struct {
	// Topics are the topics that the server sends to. Optional.
	Topics []string
	// MessageBytes is the largest body that the server sends. Optional.
	MessageBytes int
	// Subscriptions are the subscriptions that the server reads. Optional.
	Subscriptions []Subscription
	// Timeout bounds each check. Optional. Defaults to 10 s.
	Timeout time.Duration
}

// Subscription names a subscription.
type Subscription struct{ Topic, Name string }

// String returns its path, as Azure writes it.
func (s Subscription) String() string { return s.Topic + "/" + s.Name }

// Fault is one thing that the credential or the namespace does not allow.
type Fault struct {
	// Entity is a topic, or topic/subscription.
	Entity string
	// Detail says what is wrong, without secrets.
	Detail string
}

// maxConcurrent is how many entities are checked concurrently.
const maxConcurrent = 8

// Try checks each entity of the trial without changing it: it opens topics but
// sends nothing, and peeks at subscriptions but receives nothing. The faults are in
// the order of the trial. The error names the invalid field of the namespace.
func Try(ctx context.Context, n Namespace, trial Trial) ([]Fault, error) {
	opened, err := openBus(n)
	if err != nil {
		return nil, fmt.Errorf("servicebus: %w", err)
	}
	faults := make([]Fault, len(trial.Topics)+len(trial.Subscriptions))
	var group errgroup.Group
	group.SetLimit(maxConcurrent)
	check := func(at int, entity string, need right, try func(context.Context) error) {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, cmp.Or(trial.Timeout, 10*time.Second))
			defer cancel()
			if err := try(ctx); err != nil {
				faults[at] = Fault{Entity: entity, Detail: explain(ctx, entity, need, err)}
			}
			return nil
		})
	}
	for i, topic := range trial.Topics {
		check(i, topic, toSend, func(ctx context.Context) error { return trySend(ctx, opened.client, topic, trial.MessageBytes) })
	}
	for i, s := range trial.Subscriptions {
		check(len(trial.Topics)+i, s.String(), toRead, func(ctx context.Context) error { return tryRead(ctx, opened.client, s) })
	}
	_ = group.Wait() // Failures are faults.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = opened.close(closing) // Nothing is lost if it fails.
	return slices.DeleteFunc(faults, func(f Fault) bool { return f.Detail == "" }), nil
}

// trySend opens a topic and checks that a message of that size fits.
func trySend(ctx context.Context, client *azservicebus.Client, topic string, size int) error {
	sender, err := client.NewSender(topic, nil)
	if err != nil {
		return err
	}
	batch, err := sender.NewMessageBatch(ctx, nil)
	if err != nil {
		return &linkError{err}
	}
	if err := batch.AddMessage(&azservicebus.Message{Body: make([]byte, size)}, nil); err != nil {
		return err
	}
	return sender.Close(ctx)
}

// tryRead peeks at the first message of a subscription.
func tryRead(ctx context.Context, client *azservicebus.Client, s Subscription) error {
	receiver, err := client.NewReceiverForSubscription(s.Topic, s.Name, nil)
	if err != nil {
		return err
	}
	_, err = decoded(func() ([]*azservicebus.ReceivedMessage, error) { return receiver.PeekMessages(ctx, 1, nil) })
	if err != nil && !errors.Is(err, errUndecodable) { // The subscription can be read.
		return &linkError{err}
	}
	return receiver.Close(ctx)
}

// explain describes an error for an operator.
func explain(ctx context.Context, entity string, need right, err error) string {
	outcome := verdict(ctx, entity, need, err)
	if denied, ok := errors.AsType[*accessError](outcome); ok {
		return denied.Error()
	}
	if _, refused := errors.AsType[*outbox.RejectedError](outcome); refused {
		return "its message size limit is below that of directives"
	}
	outage, ok := errors.AsType[*outbox.OutageError](outcome)
	switch {
	case ok && outage.Entity == "":
		return "no connection"
	case ok:
		return "it is missing or out of service"
	case ctx.Err() != nil:
		return "it did not answer in time"
	}
	return "it cannot be used: " + err.Error()
}
