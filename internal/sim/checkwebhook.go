package sim

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// notice is the checker's copy of one webhook: of its row, and of what its receiver got.
type notice struct {
	job   *job
	index int
	row   tablestore.Properties // nil if there is none
	body  string                // as it was received first, "" if never
	moved int                   // the number of commits at which its state changed last
	began int                   // the number of commits at which it became PENDING last
	tried int                   // the attempts until then
	took  map[webhook.Outcome]bool
}

// webhooks holds the webhooks by their ids.
type webhooks struct {
	webhookTries

	all     map[string]*notice
	results map[webhook.Outcome]int // of all attempts that were answered
	done    bool                    // no replay comes any more
}

// notice returns the copy of a webhook, which may not exist yet.
func (c *checker) notice(j *job, index int) *notice {
	id := j.id + "." + strconv.Itoa(index)
	n := c.webhooks.all[id]
	if n == nil {
		n = &notice{job: j, index: index, took: map[webhook.Outcome]bool{}}
		c.webhooks.all[id] = n
	}
	return n
}

func (n *notice) id() string    { return n.job.id + "." + strconv.Itoa(n.index) }
func (n *notice) state() string { return n.row.Get("state").String() }

// givenUp reports whether it is to be listed as undelivered.
func (n *notice) givenUp() bool {
	return slices.Contains([]string{"EXHAUSTED", "GONE", "REFUSED"}, n.state()) && !n.job.purged
}

// entry returns the key of the schedule entry that a pending webhook has.
func (c *checker) noticeEntry(n *notice) tablestore.Key {
	j := *n.job
	j.row.EntryKind, j.row.EntryNonce = string(ledger.Webhook), strconv.Itoa(n.index)
	j.row.EntryDue = n.row.Get("next_attempt_at").Time()
	return c.entryKey(&j)
}

// lists returns the keys of the rows that list an undelivered webhook.
func (n *notice) lists() []tablestore.Key {
	row := ledger.ListOrder(n.job.id) + ":" + strconv.Itoa(n.index)
	return []tablestore.Key{
		{Table: tables.Index, Partition: "undelivered", Row: row},
		{Table: tables.Index, Partition: "undelivered:" + n.job.tenant, Row: row},
	}
}

// takeWebhook checks a change of a WEBHOOK row.
func (c *checker) takeWebhook(j *job, w *write) {
	index, _ := strconv.Atoi(strings.TrimPrefix(w.op.Key.Row, "WEBHOOK:"))
	n := c.notice(j, index)
	was := n.state()
	if w.gone() {
		if w.was && !j.purged && j.exists {
			c.violate("webhooks", "webhook %s was deleted", n.id())
		}
		n.row = nil
		return
	}
	if !w.was && c.landing && j.purged { // A late write after the purge: no entry refers to the row, so it is never sent.
		c.outlived[w.op.Key.String()] = true
		return
	}
	n.row = w.op.Properties
	if was != n.state() {
		n.moved = c.seq
	}
	switch seq := n.row.Get("seq").Int(); {
	case !w.was && (n.state() != "PENDING" || seq != 0 || !j.row.Terminal() || n.body != ""):
		c.violate("webhooks", "webhook %s of job %s, which is %s, began as %s with change %d", n.id(), j.id, j.row.State, n.state(), seq)
	case w.was && seq != w.old.Get("seq").Int()+1:
		c.violate("webhooks", "webhook %s went from change %d to %d", n.id(), w.old.Get("seq").Int(), seq)
	case j.purged:
		return
	}
	if n.state() == "PENDING" && was != "PENDING" && w.was { // It was replayed.
		n.began, n.tried, n.took = c.seq, c.webhooks.of(n.id()), map[webhook.Outcome]bool{}
	}
	c.checkNoticed(n, was)
	c.checkNoticeFound(n)
}

// checkNoticed checks that what a webhook says of its attempts is what happened since its end or its last replay.
func (c *checker) checkNoticed(n *notice, was string) {
	attempts, tried := int(n.row.Get("attempts").Int()), c.webhooks.of(n.id())-n.tried
	promised := len(webhookDelays) + 1
	switch now := n.state(); {
	case attempts > tried || attempts > promised:
		c.violate("webhooks", "webhook %s counts %d attempts, there were %d, and %d are promised", n.id(), attempts, tried, promised)
	case now == was:
	case was != "" && was != "PENDING" && now != "PENDING":
		c.violate("webhooks", "webhook %s was %s and became %s", n.id(), was, now)
	case now == "PENDING" && attempts != 0:
		c.violate("webhooks", "webhook %s is replayed after %d attempts", n.id(), attempts)
	case now == "EXHAUSTED" && attempts != promised:
		c.violate("webhooks", "webhook %s was given up after %d attempts, %d are promised", n.id(), attempts, promised)
	case now == "DELIVERED" && !n.took[webhook.Delivered], now == "GONE" && !n.took[webhook.Gone]:
		c.violate("webhooks", "webhook %s is %s, and its receiver answered %v", n.id(), now, n.took)
	}
}

// checkNoticeFound checks that an entry leads to a pending webhook, or to its job, whose end is not done, and that an
// undelivered one is listed.
func (c *checker) checkNoticeFound(n *notice) {
	if n.state() == "PENDING" && c.rows[c.noticeEntry(n)] == nil && c.rows[c.entryKey(n.job)] == nil {
		c.violate("schedule", "webhook %s is pending, and its entry %s is missing", n.id(), c.noticeEntry(n).Row)
	}
	for _, key := range n.lists() {
		if n.givenUp() && c.rows[key] == nil {
			c.violate("listed", "webhook %s is %s, and its row %s is missing", n.id(), n.state(), key)
		}
	}
}

// checkNoticeEntry checks that the entry of a webhook is deleted only when it is no longer needed.
func (c *checker) checkNoticeEntry(w *write, parts []string) {
	index, _ := strconv.Atoi(parts[3])
	j := c.job(parts[2])
	if !w.gone() || !w.was || j.purged || j.row.Tombstone {
		return
	}
	n := c.notice(j, index)
	switch seq, rev := n.row.Get("seq").Int(), w.old.Get("rev").Int(); {
	case n.row == nil && c.rows[c.entryKey(j)] == nil:
		c.violate("schedule", "the entry of webhook %s was deleted before there was a webhook", n.id())
	case n.row == nil:
	case seq < rev:
		c.violate("schedule", "an entry of webhook %s for change %d was deleted at change %d", n.id(), rev, seq)
	case n.state() == "PENDING" && c.noticeEntry(n) == w.op.Key:
		c.violate("schedule", "the entry of webhook %s, which is pending, was deleted", n.id())
	}
}

// checkAnnounced checks that the end of a job has left its webhooks.
func (c *checker) checkAnnounced(j *job) {
	for i := range j.row.Callbacks {
		n := c.notice(j, i)
		if n.row == nil {
			c.violate("webhooks", "job %s has ended, and its webhook %s is missing", j.id, n.id())
			continue
		}
		if n.state() == "PENDING" && c.rows[c.noticeEntry(n)] == nil {
			c.violate("schedule", "the end of job %s is done, webhook %s is pending, and its entry is missing", j.id, n.id())
		}
	}
}

// undelivered reports whether a row lists undelivered webhooks.
func undelivered(key tablestore.Key) bool {
	return key.Table == tables.Index && (key.Partition == "undelivered" || strings.HasPrefix(key.Partition, "undelivered:"))
}

// checkUndelivered checks that a webhook that was given up stays in the lists.
func (c *checker) checkUndelivered(w *write) {
	row := w.op.Properties
	if w.gone() {
		row = w.old
	}
	j := c.jobs[row.Get("job_id").String()]
	if j == nil {
		return
	}
	switch n := c.notice(j, int(row.Get("index").Int())); {
	case w.gone() && w.was && n.givenUp():
		c.violate("listed", "webhook %s is %s, and its row %s was deleted", n.id(), n.state(), w.op.Key)
	case !w.gone() && c.landing && j.purged:
		c.outlived[w.op.Key.String()] = true
	}
}

// received checks a webhook that has come to its receiver.
func (c *checker) received(m *webhook.Message, result webhook.Result) {
	id, index, err := ledger.ParseWebhookID(m.ID)
	j := c.jobs[id]
	var body struct {
		Type string
		Data struct {
			JobID       string `json:"jobId"`
			TenantID    string `json:"tenant_id"`
			State       string
			CompletedAt time.Time `json:"completed_at"`
		}
	}
	if err == nil {
		err = json.Unmarshal(m.Body, &body)
	}
	if err != nil || j == nil {
		c.violate("webhooks", "a receiver got %s with %s: %v", m.ID, m.Body, err)
		return
	}
	n := c.notice(j, index)
	n.took[result.Outcome] = true
	kind := map[string]string{"SUCCEEDED": "job.succeeded", "FAILED_FINAL": "job.failed", "CANCELLED": "job.cancelled"}[body.Data.State]
	switch told := body.Data; {
	case n.body != "" && n.body != string(m.Body):
		c.violate("webhooks", "webhook %s was %s, and then %s", m.ID, n.body, m.Body)
	case kind == "" || kind != body.Type || told.JobID != id || told.TenantID != j.tenant || m.TenantID != j.tenant:
		c.violate("webhooks", "webhook %s of tenant %s is %s", m.ID, j.tenant, m.Body)
	case !j.purged && (told.State != j.row.State || !told.CompletedAt.Equal(j.row.Completed)):
		c.violate("webhooks", "webhook %s of job %s, which is %s since %s, is %s", m.ID, j.id, j.row.State, j.row.Completed, m.Body)
	case !j.purged && (index >= j.row.Callbacks || m.URL != n.row.Get("url").String()):
		c.violate("webhooks", "webhook %s was sent to %s", m.ID, m.URL)
	}
	n.body = string(m.Body)
}

// anyWebhook returns the id of a random webhook, or "" if there is none.
func (c *checker) anyWebhook(draw int) string {
	var ids []string
	for id, n := range c.webhooks.all {
		if n.row != nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return ""
	}
	slices.Sort(ids)
	return ids[draw%len(ids)]
}

// answeredReplay checks the answer to a replay: it has begun, or the webhook was pending.
func (c *checker) answeredReplay(began int, id string, err error) {
	n := c.webhooks.all[id]
	refused, _ := errors.AsType[*apierror.Error](err)
	switch {
	case err == nil && n.began <= began:
		c.violate("answer", "the replay of webhook %s was answered, and had not begun", id)
	case refused != nil && refused.Code == apierror.NotFound && n.row != nil && !n.job.purged:
		c.violate("answer", "webhook %s was not found", id)
	case refused != nil && refused.Code == apierror.IllegalTransition && n.state() != "PENDING" && n.moved <= began && !n.job.purged:
		c.violate("answer", "webhook %s was not replayed, and is %s", id, n.state())
	case err != nil:
		c.checkRefusal("replay of webhook "+id, err)
	}
}

// answeredUndelivered checks that a list has every webhook that was undelivered since before the first request.
func (c *checker) answeredUndelivered(tenant string, began int, ids []string) {
	for id, n := range c.webhooks.all {
		if n.givenUp() && n.moved <= began && (tenant == "" || tenant == n.job.tenant) && !slices.Contains(ids, id) {
			c.violate("lists", "webhook %s is %s, and is not in the list of tenant %q: %v", id, n.state(), tenant, ids)
		}
	}
	for _, id := range ids {
		n := c.webhooks.all[id]
		if n == nil || tenant != "" && tenant != n.job.tenant || !n.givenUp() && n.moved <= began && !n.job.purged {
			c.violate("lists", "webhook %s is in the list of tenant %q", id, tenant)
		}
	}
}
