package workqueue

import (
	"slices"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// readyChannel is the channel on which processes notify each other of ready items.
const readyChannel = "lucius_ready"

// maxTold bounds a stream's tenants that were named in notifications and not read yet:
// anyone who can connect to the database can send notifications.
const maxTold = 1024

// connect makes processes on the store wake each other's claims, if it can carry hints.
// Claims poll nevertheless.
func (m *Mirror) connect(store tablestore.Store) {
	notifier, ok := tablestore.As[tablestore.Notifier](store)
	if !ok {
		return
	}
	m.mu.Lock()
	m.tell = func(h *ledger.Hint) {
		notifier.Notify(readyChannel, tablestore.Join(h.Kind.Service, h.Kind.StepType, strconv.Itoa(h.Shard), h.TenantID, h.Class.String()))
	}
	m.mu.Unlock()
	notifier.Listen(readyChannel, m.hear)
}

// hear wakes a claim for which another process has queued an item. The claim reads the head
// of the tenant's queue, or of the catalog if the kind of work is new here.
func (m *Mirror) hear(payload string) {
	parts, err := tablestore.Split(payload)
	if err != nil || len(parts) != 5 {
		return // A notification may have been lost; polls will find the item.
	}
	shard, err := strconv.Atoi(parts[2])
	class, known := statemachine.ParseClass(parts[4])
	if err != nil || !known {
		return
	}
	key, tenant := streamKey{ledger.WorkKind{Service: parts[0], StepType: parts[1]}, class, shard}, parts[3]
	m.mu.Lock()
	defer m.mu.Unlock()
	may := func(c *claim) bool {
		return c.wants(key.kind) && c.admits(tenant) && c.q.limits.Leasable(parts[0], parts[1], tenant)
	}
	if !slices.ContainsFunc(m.waiting, func(w *waiter) bool { return may(w.claim) }) {
		return // A new claim reads all the work that it wants.
	}
	if s := m.streams[key]; s == nil {
		m.catalog = time.Time{}
	} else if len(s.told) < maxTold {
		s.told[tenant] = struct{}{}
	}
	m.wakeFirst(may)
}
