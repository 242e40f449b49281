package fakeservicebus

import "time"

// Effect is what happens to a transfer that a client sends.
type Effect int

// The effects. If the broker stores a message but does not tell the client, only
// duplicate detection keeps the resend from becoming a second message.
const (
	// None accepts the messages.
	None Effect = iota
	// Reject stores nothing and answers with the Condition and the Description.
	Reject
	// Release stores nothing and answers released.
	Release
	// Modify stores nothing and answers modified, with delivery-failed.
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

// stores reports whether the messages are stored.
func (e Effect) stores() bool { return e == None || e == DropAfter || e == Silence }

// Fault is the fate of one transfer, which is one message or one batch. The zero
// value is no fault.
type Fault struct {
	// Effect is the kind of fault.
	Effect Effect
	// Condition is AMQP's name for the error, such as com.microsoft:server-busy.
	// Required for Reject and Detach.
	Condition string
	// Description is for people. Optional.
	Description string
	// Delay delays the answer, or the effect that replaces it. Messages are stored at
	// once. Optional.
	Delay time.Duration
}

// Refusal is the reason for refusing a link or a token.
type Refusal struct {
	// Condition is AMQP's name for the error, such as one of the constants here.
	// Required for links; a refused token has the status 401.
	Condition string
	// Description is for people. Optional.
	Description string
}

// Conditions of the broker that clients distinguish.
const (
	NotFound            = "amqp:not-found"
	UnauthorizedAccess  = "amqp:unauthorized-access"
	InternalError       = "amqp:internal-error"
	NotAllowed          = "amqp:not-allowed"
	LimitExceeded       = "amqp:resource-limit-exceeded"
	DetachForced        = "amqp:link:detach-forced"
	MessageSizeExceeded = "amqp:link:message-size-exceeded"
	EntityDisabled      = "com.microsoft:entity-disabled"
	ServerBusy          = "com.microsoft:server-busy"
	Timeout             = "com.microsoft:timeout"
	MessageLockLost     = "com.microsoft:message-lock-lost"
)

// Arrival is how a message reaches one subscription. The zero value means at once,
// once, and in order.
type Arrival struct {
	// Delay delays the message; messages that arrive in the meantime overtake it.
	// Optional.
	Delay time.Duration
	// Behind delays the message until that many later ones are in the subscription
	// ahead of it. It cannot be combined with Delay. Optional.
	Behind int
	// Twice delivers the message a second time, as if the first lock had expired while
	// its holder kept working. The first delivery does not wait for the second. Optional.
	Twice bool
}

// Hooks inject faults. Each is optional and, but for OnSettle, is called without any
// lock, so it may call the Server. Several connections may call one hook concurrently.
type Hooks struct {
	// OnSend is called before the messages of a transfer to a topic are stored. The
	// entity is the topic's name as it was declared; the id of a message without one
	// is empty.
	OnSend func(entity string, messageIDs []string) Fault
	// OnArrival is called for each copy of a message before it enters its
	// subscription, which is named by its path.
	OnArrival func(subscription, messageID string) Arrival
	// OnSettle is called before a message of a subscription or a dead-letter queue, which
	// is named by its path, is completed. Nil completes it.
	OnSettle func(queue string) *Refusal
	// OnRequest is called before a request on a $management link, which is named by its
	// address, is executed. A fault, which is Silence or Detach, comes in the place of the
	// execution and the answer.
	OnRequest func(address, operation string) Fault
	// OnAttach is called before a link to an address is attached, including
	// $management links. Nil accepts the link.
	OnAttach func(address string) *Refusal
	// OnToken is called before a token for an audience is accepted. Nil accepts it.
	OnToken func(audience string) *Refusal
	// OnManage is called before a request to the management interface is answered. A
	// status other than 0 is answered instead.
	OnManage func(method, path string) (status int)
}

// SetHooks replaces the hooks. It is safe for concurrent use; operations in progress
// keep the old hooks.
func (s *Server) SetHooks(h Hooks) {
	if h.OnSend == nil {
		h.OnSend = func(string, []string) Fault { return Fault{} }
	}
	if h.OnSettle == nil {
		h.OnSettle = func(string) *Refusal { return nil }
	}
	if h.OnRequest == nil {
		h.OnRequest = func(string, string) Fault { return Fault{} }
	}
	if h.OnAttach == nil {
		h.OnAttach = func(string) *Refusal { return nil }
	}
	if h.OnToken == nil {
		h.OnToken = func(string) *Refusal { return nil }
	}
	s.hooks.Store(&h)
}
