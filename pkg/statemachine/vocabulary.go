package statemachine

import (
	"slices"
	"strings"
)

// The event types that are not simply an object's new state.
const (
	EventJobAccepted    = "job.accepted"
	EventJobAdvanced    = "job.advanced"
	EventJobRescheduled = "job.rescheduled"
	EventStepRefenced   = "step.refenced"
	EventStepClaimed    = "step.claimed"
	EventStepExtended   = "step.extended"
	EventStepRetryNow   = "step.retry_requested"
	EventStepCarried    = "step.carried"
	EventOutboxPending  = "outbox.pending"
	EventOutboxDue      = "outbox.due"
	EventOutboxTaken    = "outbox.taken"
	EventOutboxRejected = "outbox.rejected"
)

// EventTypes is the whole vocabulary of history entries.
func EventTypes() []string {
	types := []string{
		EventJobAccepted, EventJobAdvanced, EventJobRescheduled, EventStepRefenced, EventStepClaimed,
		EventStepExtended, EventStepRetryNow, EventStepCarried,
		EventOutboxPending, EventOutboxDue, EventOutboxTaken, EventOutboxRejected,
	}
	add := func(object Object, from, to string) {
		name := eventType(object, from, to)
		if !slices.Contains(types, name) {
			types = append(types, name)
		}
	}
	for _, e := range JobEdges {
		add(ObjectJob, string(e.From), string(e.To))
	}
	for _, e := range StepEdges {
		add(ObjectStep, string(e.From), string(e.To))
	}
	for _, e := range OutboxEdges {
		add(ObjectOutbox, string(e.From), string(e.To))
	}
	return types
}

// eventType is the canonical type of a transition: the object and the state
// that it entered, or a name of its own where the state stays.
func eventType(object Object, from, to string) string {
	if from != to {
		return string(object) + "." + strings.ToLower(to)
	}
	switch object {
	case ObjectJob:
		return EventJobAdvanced
	case ObjectStep:
		return EventStepRefenced
	case ObjectOutbox:
	}
	return EventOutboxDue
}
