// Package serving puts the use cases behind the HTTP API: it implements the ports
// of package httpapi, which speak the words of the contract, with packages that
// speak their own. The program and the simulation serve through the same ports.
//
//	pkg/httpapi ──ports──► internal/serving ──calls──► commands, jobs, callbacks,
//	  (the wire)              (this package)            workqueue, outbox, …
package serving

import (
	"errors"
	"log/slog"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/failures"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/liveness"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// Parts are the use cases of one server. All but Queue are required.
type Parts struct {
	Ledger *ledger.Ledger
	// Commands accept what is submitted. Their ledger has to be the one of
	// [Admitting].
	Commands  *commands.Service
	Jobs      *jobs.Service
	Callbacks *callbacks.Service
	// Queue is the pull queue. Optional. Defaults to none: work comes by a bus.
	Queue     *workqueue.Queue
	Operator  *outbox.Operator
	Checker   *liveness.Checker
	Failures  *failures.Service
	Pauses    *pauses.Service
	Gate      *pauses.Gate
	Protocols *protocol.Holder
	Log       *slog.Logger
}

// Ports are the ports of the HTTP server over these parts. What else the server is
// made of is the caller's to add. The error names a part that is missing.
func Ports(p *Parts) (httpapi.Config, error) {
	for name, missing := range map[string]bool{
		"Ledger": p.Ledger == nil, "Commands": p.Commands == nil, "Jobs": p.Jobs == nil, "Callbacks": p.Callbacks == nil,
		"Operator": p.Operator == nil, "Checker": p.Checker == nil, "Failures": p.Failures == nil, "Pauses": p.Pauses == nil,
		"Gate": p.Gate == nil, "Protocols": p.Protocols == nil, "Log": p.Log == nil,
	} {
		if missing {
			return httpapi.Config{}, errors.New("serving: Parts." + name + " is required")
		}
	}
	config := httpapi.Config{
		Commands: commandsPort{p.Commands}, Jobs: jobsPort{p.Jobs}, Callbacks: callbacksPort{p.Callbacks},
		Admin:     adminPort{operator: p.Operator, checker: p.Checker},
		Failures:  failuresPort{service: p.Failures, log: p.Log},
		Webhooks:  webhooksPort{p.Ledger},
		Pauses:    pausesPort{service: p.Pauses, gate: p.Gate, log: p.Log},
		Protocols: protocolsPort{p.Protocols},
		Owners:    ownersPort{ledger: p.Ledger, queue: p.Queue, failures: p.Failures},
		Log:       p.Log,
	}
	if p.Queue != nil {
		config.Work = workPort{p.Queue}
	}
	return config, nil
}
