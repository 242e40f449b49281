package queuetest

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// flaws says what is broken about a queue; the zero value is a correct queue. Its methods
// are the decisions that a queue makes without the policy, correct unless a flaw spoils
// them.
type flaws struct {
	// reclaims is a choice, not a flaw: claims take stalled items too.
	reclaims bool

	// asks spoils the input of the policy.
	asks func(op statemachine.ItemOperation, seen *statemachine.Item, request *statemachine.ItemRequest)
	// writes spoils the output of the policy.
	writes func(op statemachine.ItemOperation, before statemachine.Item, change *statemachine.ItemChange)

	coversNothing      bool
	coversKeyOnly      bool
	inventsItems       bool
	takesPartialClaims bool
	sharesClaims       bool
	forgetsClaims      bool
	remembersNothing   bool
	answersStale       bool
	answersByStatus    bool
	ignoresMax         bool
	ignoresServices    bool
	ignoresStepTypes   bool
	unlocksInClaim     bool
	claimsStatuses     []statemachine.ItemStatus
	hidesRequeued      bool
	// impatience is how much too early requests and claims are forgotten.
	impatience time.Duration
}

func (f *flaws) covers(item *statemachine.Item, message statemachine.ItemMessage) bool {
	switch {
	case f.coversNothing:
		return false
	case f.coversKeyOnly:
		return item.DedupeKey == message.DedupeKey
	default:
		return item.Covers(message)
	}
}

func (f *flaws) notFound(id string) error {
	if f.inventsItems {
		return nil
	}
	return fmt.Errorf("%w: %s", statemachine.ErrNoItem, id)
}

func (f *flaws) wholeClaim(claim Claim) error {
	switch {
	case f.takesPartialClaims:
	case claim.Owner == "":
		return &statemachine.ItemRequestError{Field: "owner", Reason: "is required"}
	case claim.RequestID == "":
		return &statemachine.ItemRequestError{Field: "request_id", Reason: "is required"}
	}
	return nil
}

func (f *flaws) claimKey(claim Claim) claimKey {
	if f.sharesClaims {
		return claimKey{requestID: claim.RequestID}
	}
	return claimKey{owner: claim.Owner, requestID: claim.RequestID}
}

// recalls reports whether the claim is still known.
func (f *flaws) recalls(known claimed, now time.Time) bool {
	return !f.forgetsClaims && (f.impatience == 0 || known.until.After(now.Add(f.impatience)))
}

// remembered are the requests that are still known.
func (f *flaws) remembered(requests []statemachine.Remembered, now time.Time) []statemachine.Remembered {
	if f.impatience == 0 {
		return requests
	}
	return slices.DeleteFunc(slices.Clone(requests), func(known statemachine.Remembered) bool {
		return !known.ExpiresAt.After(now.Add(f.impatience))
	})
}

func (f *flaws) stillHeld(item *statemachine.Item, claim Claim) bool {
	switch {
	case f.answersStale:
		return true
	case f.answersByStatus:
		return item.Status.Held() && item.Owner == claim.Owner
	default:
		return item.HeldUnder(claim.Owner, claim.RequestID)
	}
}

func (f *flaws) max(claim Claim) int {
	if f.ignoresMax {
		return 1000
	}
	return claim.Max
}

// chosen returns the items that a claim takes among those that it may take.
func (f *flaws) chosen(ids []string) []string {
	if len(ids) == 0 && f.inventsItems {
		return []string{"work-0"}
	}
	return ids
}

func (f *flaws) claimable(item statemachine.Item) bool {
	return item.Status == statemachine.StatusQueued && (!f.hidesRequeued || item.Attempt == 0) ||
		item.Status == statemachine.StatusStalled && f.reclaims ||
		slices.Contains(f.claimsStatuses, item.Status)
}

func (f *flaws) matches(filter Filter, item statemachine.Item) bool {
	in := func(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }
	return (f.ignoresServices || in(filter.Services, item.Service)) &&
		(f.ignoresStepTypes || in(filter.StepTypes, item.StepType))
}

// beforeClaim runs between the choice of an item and its claim.
func (f *flaws) beforeClaim(q *memQueue) {
	if !f.unlocksInClaim {
		return
	}
	q.mu.Unlock()
	for range 100 {
		runtime.Gosched()
	}
	q.mu.Lock()
}
