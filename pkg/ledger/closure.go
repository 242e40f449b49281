package ledger

import "github.com/lucius-project/lucius/pkg/statemachine"

// Closure returns what the change closes, and whether it closes anything: only the change that
// applied a throttled RESULT in a revision does. A RESULT that is repeated, refused or late does
// not. See [statemachine.Result.Closure] for the arguments.
func (r *Result) Closure(actor string, everyTenant func(service string) bool) (c statemachine.Closure, closes bool) {
	reported, ok := r.revisedBy.(statemachine.Result)
	if !ok {
		return statemachine.Closure{}, false
	}
	return reported.Closure(&r.Job, actor, everyTenant)
}
