package workqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ClaimRequest is one claim.
type ClaimRequest struct {
	// Owner is the worker that asks. Required.
	Owner string
	// Client describes the worker's program and host. Optional.
	Client Client
	// RequestID is remembered per owner: a repeat returns those items of the first
	// request that the owner still holds. Required.
	RequestID string
	// Services, StepTypes and Tenants narrow what is claimed; an empty list matches all.
	Services  []string
	StepTypes []string
	Tenants   []string
	// Max bounds the items, at least 1.
	Max int
	// Wait is how long to wait for a first item.
	Wait time.Duration
	// Lease, unless it is 0, is the lease of the items, from the claim and from each
	// heartbeat on. From the start, the step's own lease bounds it.
	Lease time.Duration
	// Start also starts the items, in the same change.
	Start bool
	// Ended ends the wait early; nil never does.
	Ended <-chan struct{}
	// Reserve, unless it is nil, replaces the claim's earlier reservation: it waits until
	// there is memory for that many bytes, the maximum that the items may take. The claim
	// reserves 0 before it waits for work. An error of Reserve ends the claim.
	Reserve func(ctx context.Context, bytes int64) error
}

const (
	// ItemBytes is the share of memory of an item with its directive.
	ItemBytes = 256 << 10
	// enough is how many bytes of directives one claim hands out; it may exceed them by
	// what it loads in parallel.
	enough = 4 << 20
)

// leasePatience is how long a claim waits at least, once, for tokens that are being leased.
// Workers that poll without waiting would otherwise come too early each time.
const leasePatience = time.Second

// reserve reserves memory for n items.
func (r *ClaimRequest) reserve(ctx context.Context, n int) error {
	if r.Reserve == nil {
		return nil
	}
	return r.Reserve(ctx, min(int64(n)*ItemBytes, 2*enough))
}

// check names the field that is invalid.
func (r *ClaimRequest) check() error {
	switch {
	case r.Owner == "":
		return &statemachine.ItemRequestError{Field: "owner", Reason: "is required"}
	case r.RequestID == "":
		return &statemachine.ItemRequestError{Field: "request_id", Reason: "is required"}
	case r.Max < 1:
		return &statemachine.ItemRequestError{Field: "max", Reason: "must be at least 1"}
	case r.Wait < 0:
		return &statemachine.ItemRequestError{Field: "wait_seconds", Reason: "must not be negative"}
	case r.Lease < 0:
		return &statemachine.ItemRequestError{Field: "lease_seconds", Reason: "must not be negative"}
	}
	return nil
}

// Claim returns ready items for a worker: as soon as there are any, or none when the wait
// is over. If directives are large, it may return fewer items than requested and available.
// It returns no item whose attempt is not current, or that a pause covers.
//
// Source: Job lifecycle plan 02, Claim.
func (q *Queue) Claim(ctx context.Context, r ClaimRequest) ([]View, error) {
	if err := r.check(); err != nil {
		return nil, asProblem(err)
	}
	defer q.pollers.begin(&r, &q.caller)()
	c := q.newClaim(ctx, &r)
	deadline, end := time.NewTimer(r.Wait), time.Now().Add(r.Wait)
	defer deadline.Stop()
	waiter, leave := q.mirror.wait(c)
	defer leave()
	for {
		views, done, err := c.try(ctx)
		if done || err != nil {
			return views, asProblem(err)
		}
		if err := r.reserve(ctx, 0); err != nil {
			return nil, asProblem(err)
		}
		leasing := slices.ContainsFunc(c.missed, q.limits.Leasing) // Tokens that came before are signaled below.
		select {
		case <-waiter.signal:
			continue // Prefer work over the end of the wait.
		default:
		}
		if leasing && !end.IsZero() {
			deadline.Reset(max(time.Until(end), leasePatience))
			end = time.Time{} // Only once: a limit must not keep a claim that is not to wait.
		}
		given, over := c.wait(ctx, waiter, deadline.C)
		switch {
		case given != nil:
			views, err := c.given(ctx, given)
			return views, asProblem(err)
		case over:
			return nil, nil
		}
	}
}

// wait waits for a wake-up, or for a change that claims an item for the claim. over says
// that the claim's time has ended.
func (c *claim) wait(ctx context.Context, w *waiter, deadline <-chan time.Time) (given *ledger.Claimed, over bool) {
	poll := time.NewTimer(c.q.poll)
	defer poll.Stop()
	w.park()
	c.damaged = 0
	select {
	case <-w.signal:
	case <-poll.C:
		c.q.expire(ctx, 0)
	case <-deadline:
		over = true
	case <-c.Ended:
		over = true
	case <-ctx.Done():
		over = true
	}
	return w.unpark(), over
}

// given returns the item that a change queued and claimed for this claim.
func (c *claim) given(ctx context.Context, item *ledger.Claimed) ([]View, error) {
	c.q.expire(ctx, 1)
	if err := c.reserve(ctx, 1); err != nil {
		return nil, err
	}
	return []View{{Item: item.Item, Directive: item.Directive}}, nil
}

// claim is a claim in progress.
type claim struct {
	*ClaimRequest

	q       *Queue
	digest  string
	memory  *memory // as it was last read, nil if there is none
	looked  bool    // a try has read the whole index
	damaged int     // how often it met items whose rows cannot be read, since it last waited
	// repeated says that the request may have been made before, here or at another
	// replica. The commit of a claim detects a repeat by itself.
	repeated bool
	// tokens are those of the hints that were picked, by their rows. A hint without a limit has
	// none. tokensMu guards it and them: if the request ends, the store may still be about to send.
	tokensMu sync.Mutex
	tokens   map[string]*admission.Token
	// missed are the limits and closures that hold back what this pick looks at: others of
	// their items need not ask.
	missed []admission.Scope
	// lacked is for how many places each limit was asked since the claim last waited: it looks more
	// than once, and of tokens that are leased twice for one place half would lapse.
	lacked map[admission.Scope]int
	// ctx is the request's, but does not end. A change that claims an item for this claim
	// uses it.
	ctx context.Context //nolint:containedctx // Another request makes the change.
}

func (q *Queue) newClaim(ctx context.Context, r *ClaimRequest) *claim {
	return &claim{ClaimRequest: r, q: q, digest: r.digest(&q.caller), ctx: context.WithoutCancel(ctx)}
}

// wants reports whether the claim takes work of that kind.
func (c *claim) wants(k ledger.WorkKind) bool {
	return listed(c.Services, k.Service) && listed(c.StepTypes, k.StepType) && listed(c.q.caller.Services, k.Service)
}

// admits reports whether the claim takes work of that tenant, which is not paused.
func (c *claim) admits(tenant string) bool {
	return listed(c.Tenants, tenant) && listed(c.q.caller.Tenants, tenant) && !c.q.heldTenant(tenant)
}

// fits reports whether the claim may take the hint's item now.
func (c *claim) fits(hint *ledger.Hint) bool {
	return c.wants(hint.Kind) && c.admits(hint.TenantID) && !c.q.held(hint.Target) &&
		c.q.limits.Leasable(hint.Kind.Service, hint.Kind.StepType, hint.TenantID)
}

// takeToken takes what the limits of the hint's item demand for its start. It reports false if a
// limit holds the item back; the claim has so many places, and ready says how many items are ready
// in a scope.
func (c *claim) takeToken(hint *ledger.Hint, places int, ready func(admission.Scope) int) bool {
	service, stepType, tenant := hint.Kind.Service, hint.Kind.StepType, hint.TenantID
	if slices.ContainsFunc(c.missed, func(s admission.Scope) bool { return s.Covers(service, stepType, tenant) }) {
		return false
	}
	lacks, more := 0, ready
	if ready != nil {
		more = func(of admission.Scope) int {
			most := ready(of)
			if lacks = min(places, most); lacks <= c.lacked[of] {
				return 0
			}
			return most
		}
	}
	token, by, ok := c.q.limits.Take(service, stepType, tenant, places, more)
	if !ok {
		c.missed = append(c.missed, by)
		c.lacked[by] = max(c.lacked[by], lacks)
	}
	if token.Limited() {
		c.tokensMu.Lock()
		defer c.tokensMu.Unlock()
		if c.tokens == nil {
			c.tokens = map[string]*admission.Token{}
		}
		c.tokens[hint.Row()] = &token
	}
	return ok
}

// sendable reports whether the claim of the hint's item may be sent now.
func (c *claim) sendable(hint *ledger.Hint) bool {
	c.tokensMu.Lock()
	defer c.tokensMu.Unlock()
	if len(c.tokens) == 0 {
		return true
	}
	token := c.tokens[hint.Row()]
	return token == nil || token.Usable()
}

// settleToken spends the token of the hint if its start took effect or may take effect, or else
// gives it back.
func (c *claim) settleToken(hint *ledger.Hint, spent bool) {
	c.tokensMu.Lock()
	defer c.tokensMu.Unlock()
	if len(c.tokens) == 0 {
		return
	}
	row := hint.Row()
	switch token := c.tokens[row]; {
	case token == nil:
	case spent:
		token.Spend()
	default:
		token.Return()
	}
	delete(c.tokens, row)
}

// Slots returns the run slots that the limits of the hint's item demand for its start.
func (c *claim) Slots(hint *ledger.Hint) []statemachine.RunSlot {
	c.tokensMu.Lock()
	defer c.tokensMu.Unlock()
	if token := c.tokens[hint.Row()]; token != nil {
		return token.Slots()
	}
	return nil
}

// Another returns another run slot of the same limit, for one that another claim has taken.
func (c *claim) Another(hint *ledger.Hint, taken statemachine.RunSlot) (another statemachine.RunSlot, ok bool) {
	c.tokensMu.Lock()
	defer c.tokensMu.Unlock()
	if token := c.tokens[hint.Row()]; token != nil {
		return token.Another(taken)
	}
	return taken, false
}

// tenants are the tenants that the claim names and that are not paused, each once;
// all says that it takes those of any tenant.
func (c *claim) tenants() (named []string, all bool) {
	if named = c.Tenants; len(named) == 0 {
		named = c.q.caller.Tenants
	}
	if len(named) == 0 {
		return nil, true
	}
	named = slices.DeleteFunc(slices.Clone(named), func(tenant string) bool { return !c.admits(tenant) })
	slices.Sort(named)
	return slices.Compact(named), false
}

// asked returns the claim for the ledger, without its memory.
func (c *claim) asked() *ledger.Claim {
	return &ledger.Claim{
		Owner: c.Owner, RequestID: c.RequestID, Start: c.Start, Lease: c.Lease, Sees: c.q.caller.sees, Enough: enough,
	}
}

// try claims ready items. It reads the memory of earlier tries only when that can matter:
// if nothing is ready, or after the first hints could not be claimed. done says that there
// is an answer.
func (c *claim) try(ctx context.Context) (views []View, done bool, err error) {
	var held []View // by an earlier try
	c.lacked = map[admission.Scope]int{}
	for tries := 1; c.damaged <= maxDamaged; tries++ {
		if c.repeated {
			views, state, err := c.earlier(ctx, held)
			switch {
			case err == nil && (len(views) > 0 || state == ledger.ReclaimDone):
				return views, true, nil
			case err != nil || state == ledger.ReclaimLater:
				return nil, false, err
			}
		}
		// Waiting claims share one read of the index in each interval.
		fresh := time.Now()
		if c.looked {
			fresh = fresh.Add(-c.q.poll)
		}
		hints, err := c.q.take(ctx, c, c.Max, fresh)
		if err != nil {
			return nil, false, err
		}
		c.looked = c.looked || len(hints) == 0
		if len(hints) == 0 && c.repeated {
			return nil, false, nil
		}
		if len(hints) > 0 {
			views, err = c.claim(ctx, hints)
			known := errors.Is(err, ledger.ErrClaimKnown)
			switch {
			case known && tries > maxUnremembered:
				return nil, true, fmt.Errorf("%w: the claim could not be remembered", tablestore.ErrUnavailable)
			case known:
				held = views
			case len(views) > 0 || err != nil:
				return views, true, err
			}
		}
		c.repeated = true
	}
	return nil, false, nil
}

const (
	// maxUnremembered bounds a claim's tries to write its memory when the store reports a row
	// from another try, but no such row can be read.
	maxUnremembered = 5
	// maxDamaged bounds how often a claim meets damaged items before it waits: all may be, as after
	// the downgrade of a replica, and the claim must not read them one after the other.
	maxDamaged = 5
)

// claim claims the hints' items. It returns none if none could be claimed, and
// [ledger.ErrClaimKnown] if the same request came before or may have: its memory has the
// whole answer.
func (c *claim) claim(ctx context.Context, hints []ledger.Hint) (views []View, err error) {
	q, asked := c.q, c.asked()
	asked.Memory = c.remember
	if len(c.tokens) > 0 {
		asked.Sendable, asked.Slots = c.sendable, c
	}
	var outcomes []ledger.Claimed
	sent := false
	if err = c.reserve(ctx, len(hints)); err == nil {
		outcomes, err = q.ledger.Claim(ctx, hints, asked)
		sent = !errors.Is(err, ledger.ErrClaimKnown)
	}
	if err != nil {
		for i := range hints {
			c.settleToken(&hints[i], sent)
			q.mirror.putBack(&hints[i])
		}
		return nil, err
	}
	var damage error // of the first item that is damaged
	fresh := false   // A commit has shown that this is the first try of the request.
	for i := range outcomes {
		one := &outcomes[i]
		damaged := one.Err != nil && !tablestore.IsOutage(one.Err) // An operator must repair the item's rows.
		fresh = fresh || one.Standing == ledger.HintNamed && one.Err == nil && !one.Known
		c.settleToken(&one.Hint, !damaged && (one.Err != nil || one.Standing == ledger.HintNamed && !one.Known))
		switch {
		case damaged:
			damage = cmp.Or(damage, one.Err)
			q.mirror.setAside(&one.Hint, damagedFor, false)
		case one.Err != nil:
			err = one.Err
			q.mirror.setAside(&one.Hint, asideFor, true)
		case one.Standing == ledger.HintNamed:
			q.mirror.settle(&one.Hint)
			views = append(views, View{Item: one.Item, Directive: one.Directive})
		case one.Standing == ledger.HintEarly && c.repeated:
			q.mirror.setAside(&one.Hint, asideFor, false)
		case one.Standing == ledger.HintVoid:
			q.mirror.settle(&one.Hint)
		default: // The claim had enough, or claimed it before: its memory tells.
			q.mirror.putBack(&one.Hint)
		}
	}
	if damage != nil {
		c.damaged++
		q.logger.ErrorContext(ctx, "work item cannot be claimed, others are", "error", damage)
	}
	q.expire(ctx, 1)
	if !fresh && !c.repeated && (len(views) > 0 || err != nil) {
		return views, ledger.ErrClaimKnown // An earlier try may have been answered with more, or with other items.
	}
	if err != nil && len(views) > 0 {
		q.logger.WarnContext(ctx, "some items were not claimed", "owner", c.Owner, "error", err)
		err = nil
	}
	return views, err
}

// earlier returns what earlier tries of the request got, as [claim.repeat] does. held are
// those of their items that this try came across.
func (c *claim) earlier(ctx context.Context, held []View) (views []View, state ledger.Reclaimable, err error) {
	if c.memory, err = c.q.recall(ctx, c.ClaimRequest); err != nil {
		return nil, state, err
	}
	if c.memory == nil {
		return held, ledger.ReclaimLost, nil // The memory has expired, but not the lease.
	}
	return c.repeat(ctx)
}

// repeat answers a repeated request from its memory: with the items that the owner still
// holds, and those that the first try did not reach. If there are none, state decides:
// after ReclaimLost, other claims took every candidate, so the request may take other
// items, and replaces its memory. After ReclaimLater it must not: the first try may be
// about to claim a candidate. After ReclaimDone the answer is empty.
func (c *claim) repeat(ctx context.Context) (views []View, state ledger.Reclaimable, err error) {
	if c.memory.Digest != c.digest {
		return nil, state, &statemachine.ItemRequestError{Field: "request_id", Reason: "was already used for another claim"}
	}
	if err := c.reserve(ctx, len(c.memory.Candidates)); err != nil {
		return nil, state, err
	}
	asked := c.asked()
	asked.Sendable, asked.Slots = c.sendable, c
	for _, candidate := range c.memory.Candidates {
		c.missed = nil
		var taken *ledger.Hint
		held := func(hint *ledger.Hint) bool {
			if taken != nil {
				c.settleToken(taken, false)
			}
			taken = hint
			return c.q.heldTenant(hint.TenantID) || c.q.held(hint.Target) || !c.takeToken(hint, 1, nil)
		}
		claimed, standing, err := c.q.ledger.Reclaim(ctx, candidate, asked, held)
		if taken != nil {
			c.settleToken(taken, err != nil || standing == ledger.ReclaimHeld)
		}
		if err != nil {
			return nil, state, err
		}
		if standing == ledger.ReclaimHeld {
			views = append(views, View{Item: claimed.Item, Directive: claimed.Directive})
		} else {
			state = max(state, standing)
		}
	}
	return views, state, nil
}
