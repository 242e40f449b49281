package amqppeer

import "time"

// Effect is what happens to a transfer that a client sends.
type Effect int

// The effects. Where the broker stores a message and the client is not told,
// nothing but duplicate detection keeps its resend from being a second message.
const (
	// None accepts the messages.
	None Effect = iota
	// Reject stores nothing and answers with the Condition and the Description.
	Reject
	// Release stores nothing and hands the transfer back.
	Release
	// Modify stores nothing and hands the transfer back as failed.
	Modify
	// DropBefore stores nothing and cuts the connection.
	DropBefore
	// DropAfter stores the messages and cuts the connection instead of answering.
	DropAfter
	// Silence stores the messages and never answers. The connection stays.
	Silence
	// Detach stores nothing and closes the link with the Condition and the
	// Description.
	Detach
)

// stores reports whether the messages are kept.
func (e Effect) stores() bool { return e == None || e == DropAfter || e == Silence }

// Fault is what becomes of one transfer, which is one message or one batch. The
// zero value is no fault.
type Fault struct {
	// Effect is what happens.
	Effect Effect
	// Condition is AMQP's name for the error, such as com.microsoft:server-busy.
	// Required for Reject and Detach.
	Condition string
	// Description is for people. Optional.
	Description string
	// Delay holds the answer back, or whatever the effect does in its place. What is
	// stored is stored at once. Optional.
	Delay time.Duration
}

// Refusal is why a link is not attached or a token not taken.
type Refusal struct {
	// Condition is AMQP's name for the error, such as one of the constants here.
	// Required for links; a refused token has the status 401.
	Condition string
	// Description is for people. Optional.
	Description string
}

// Conditions of the broker that clients tell apart.
const (
	NotFound            = "amqp:not-found"
	UnauthorizedAccess  = "amqp:unauthorized-access"
	NotAllowed          = "amqp:not-allowed"
	LimitExceeded       = "amqp:resource-limit-exceeded"
	DetachForced        = "amqp:link:detach-forced"
	MessageSizeExceeded = "amqp:link:message-size-exceeded"
	EntityDisabled      = "com.microsoft:entity-disabled"
	ServerBusy          = "com.microsoft:server-busy"
	Timeout             = "com.microsoft:timeout"
	MessageLockLost     = "com.microsoft:message-lock-lost"
)

// Arrival is how a message reaches one subscription. The zero value is at once,
// once, and in order.
type Arrival struct {
	// Delay holds the message back, behind what arrives meanwhile. Optional.
	Delay time.Duration
	// Behind holds the message back until so many more have been put into the
	// subscription, and lets it follow them. It is not combined with Delay. Optional.
	Behind int
	// Twice delivers the message a second time, as after a lock that was lost while
	// its holder worked on. The first delivery does not wait for the second. Optional.
	Twice bool
}

// Hooks inject faults. Each is optional, and is called without any lock: it may
// call the Server. Several connections may call one hook at the same time.
type Hooks struct {
	// OnSend is asked before the messages of a transfer to a topic are stored. The
	// entity is the topic's name as it was declared; a message without an id has an
	// empty one.
	OnSend func(entity string, messageIDs []string) Fault
	// OnArrival is asked for each copy of a message before it is put into its
	// subscription, by the subscription's path.
	OnArrival func(subscription, messageID string) Arrival
	// OnAttach is asked before a link to an address is attached, that of a
	// $management link included. Nil lets it through.
	OnAttach func(address string) *Refusal
	// OnToken is asked before a token for an audience is taken. Nil takes it.
	OnToken func(audience string) *Refusal
}

// SetHooks replaces the hooks. It is safe for concurrent use; what is in hand
// keeps to the hooks before.
func (s *Server) SetHooks(h Hooks) { s.hooks.Store(&h) }

// faultOf asks the hook what becomes of a transfer.
func (s *Server) faultOf(entity string, messages []*content) Fault {
	hook := s.hooks.Load().OnSend
	if hook == nil {
		return Fault{}
	}
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.id
	}
	return hook(entity, ids)
}

// refusalOf asks the hook whether a link may be attached.
func (s *Server) refusalOf(address string) *Refusal {
	if hook := s.hooks.Load().OnAttach; hook != nil {
		return hook(address)
	}
	return nil
}

// tokenRefusal asks the hook whether a token is taken.
func (s *Server) tokenRefusal(audience string) *Refusal {
	if hook := s.hooks.Load().OnToken; hook != nil {
		return hook(audience)
	}
	return nil
}
