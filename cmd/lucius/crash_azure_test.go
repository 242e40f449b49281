//go:build integration && !race

package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

// crashRounds is how often tests disturb replicas on a shared store, at least five commands apart.
var crashRounds = flag.Int("crash.rounds", 10, "how often replicas on a shared store are disturbed")

// TestCrash_EverythingOnAzure runs three replicas on one storage account, with workers on
// a namespace or with workers that pull. It kills replicas, restarts the broker, cuts the
// connections to it and to the account, makes the account throttle, and makes replies
// arrive twice and out of order. The job of every accepted command still succeeds, no step is
// applied twice, and the audit of the account is clean. The layout "table" has all that the
// layout "ledger" has; on the latter each kind of failure happens half as often.
func TestCrash_EverythingOnAzure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		layout, bus string
		rounds      int
	}{
		"ledger on Service Bus":         {config.BackendLedger, config.BusServiceBus, (*crashRounds + 1) / 2},
		"table on Service Bus":          {config.BackendTable, config.BusServiceBus, *crashRounds},
		"ledger with workers that pull": {config.BackendLedger, config.BusQueue, (*crashRounds + 1) / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, test.layout, test.bus)
			c.start()
			var l *load
			rest := func() {}
			if test.bus == config.BusServiceBus {
				rest = workOnBus(t, c.namespace, handle)
				l, _ = startClients(c.entry, 50*time.Millisecond)
			} else {
				l = startLoad(c.entry, 50*time.Millisecond)
			}
			for round := range test.rounds {
				l.more()
				c.disturb(round)
			}
			jobs := l.drain()
			rest()
			c.audit(jobs)
			t.Logf("%d commands accepted", len(jobs))
		})
	}
}

// cloud is an account, a namespace, and replicas that use both. Clients reach the replica
// that started last.
type cloud struct {
	t         *testing.T
	layout    string
	bus       string
	door      *frontDoor // of the account
	proxy     *tcpProxy  // in front of the door
	namespace *fakeservicebus.Server
	entry     *site
	replicas  []*process
}

// replicasOnAzure is the number of replicas.
const replicasOnAzure = 3

func newCloud(t *testing.T, layout, bus string) *cloud {
	t.Helper()
	door := newFrontDoor(t)
	c := &cloud{t: t, layout: layout, bus: bus, door: door, proxy: newTCPProxy(t, door.address), namespace: newNamespace(t), entry: newSite(t)}
	var arrivals atomic.Int64
	c.namespace.SetHooks(fakeservicebus.Hooks{OnArrival: func(subscription, _ string) fakeservicebus.Arrival {
		n := arrivals.Add(1)
		if !strings.Contains(subscription, "replies") {
			return fakeservicebus.Arrival{Twice: n%7 == 0}
		}
		if n%5 == 0 {
			return fakeservicebus.Arrival{Delay: time.Duration(n%4) * 50 * time.Millisecond}
		}
		return fakeservicebus.Arrival{Twice: n%3 == 0}
	}})
	return c
}

// flags returns the flags of a replica.
func (c *cloud) flags() []string {
	flags := []string{"--servicebus-lanes", fmt.Sprint(busLanes)}
	if c.bus == config.BusServiceBus {
		flags = onBus(c.namespace)
	}
	flags = append(flags, "--storage-backend", c.layout, "--table-connection", c.proxy.connectionOver(c.door.account))
	return append(flags, remoteFlags()...)
}

// remoteFlags are those of [fastFlags] that differ for a store on the network.
func remoteFlags() []string {
	lease := waittest.Scale(3 * time.Second).String()
	return []string{
		"--ack-timeout", lease, "--lease-duration", lease, "--publish-timeout", waittest.Scale(2 * time.Second).String(),
		"--sweep-interval", "1s", "--outbox-retry-interval", "1s",
	}
}

// start starts all replicas.
func (c *cloud) start() {
	c.t.Helper()
	for range replicasOnAzure {
		c.replicas = append(c.replicas, c.entry.start(c.flags()...))
	}
}

// disturb causes one failure of a replica, the broker or the account.
func (c *cloud) disturb(round int) {
	c.t.Helper()
	switch round % 5 {
	case 0: // A replica dies, and another replaces it.
		victim := rand.IntN(len(c.replicas))
		c.replicas[victim].kill()
		c.replicas[victim] = c.entry.start(c.flags()...)
	case 1:
		c.namespace.Cut()
	case 2: // The broker is unreachable for a while.
		c.namespace.Stop()
		time.Sleep(time.Second)
		if err := c.namespace.Restart(); err != nil {
			c.t.Fatal(err)
		}
	case 3: // The account is unreachable for a while.
		c.proxy.close()
		time.Sleep(time.Second)
		c.proxy.reopen()
	case 4: // The account throttles.
		c.door.throttles.Store(true)
		time.Sleep(time.Second)
		c.door.throttles.Store(false)
	}
}

// audit checks each job while a replica runs, and the account when none does.
func (c *cloud) audit(accepted map[string]string) {
	c.t.Helper()
	if len(accepted) == 0 {
		c.t.Error("no command was accepted")
	}
	c.entry.http.Transport = &patient{c.t, c.entry.http.Transport}
	for _, id := range accepted {
		auditJob(c.t, c.entry.client, id)
	}
	if found := listJobs(c.t, c.entry.client, api.ListJobsParams{}); len(found) != len(accepted) {
		c.t.Errorf("%d commands were accepted, and there are %d jobs", len(accepted), len(found))
	}
	expectQuiet(c.t, auditAccount(c.t, c.layout, c.door.account), c.replicas...)
	for lane := range busLanes {
		path := fmt.Sprintf("global-bus-replies-p%d/Subscriptions/lucius-invoker/$DeadLetterQueue", lane)
		for _, m := range c.namespace.Messages(path) {
			c.t.Errorf("dead letter %s: %v", m.Body, m.Properties)
		}
	}
	if c.layout == config.BackendTable {
		assertShown(c.t, c.door.account)
	}
}

// auditAccount returns what runs lucius audit on an account.
func auditAccount(t *testing.T, layout string, account *azurite.Server) func() (out string, clean bool) {
	t.Helper()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	return func() (string, bool) {
		cmd := exec.CommandContext(waittest.Context(t), binary, "audit", "--quiescent")
		cmd.Env = append(os.Environ(), "LUCIUS_STORAGE_BACKEND="+layout, "LUCIUS_TABLE_CONNECTION="+account.ConnectionString())
		found, err := cmd.CombinedOutput()
		return string(found), err == nil
	}
}
