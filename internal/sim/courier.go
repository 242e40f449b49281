package sim

import (
	"net/url"
	"slices"
	"strconv"
	"time"
)

// webhookPage is a page of webhooks.
type webhookPage struct {
	Webhooks []struct {
		ID string `json:"webhook_id"`
	} `json:"webhooks"`
	Next  string `json:"next_page_token"`
	began int    // the number of commits before the request
}

// deliver runs an operator who replays webhooks: those that were given up, and in between any.
func (v *visitor) deliver() {
	for range 16 {
		if !v.pause(6*time.Second) || v.w.isCalm() {
			break
		}
		if v.chance(40) {
			draw := v.rng.IntN(1 << 20)
			if id, _ := v.look("webhook", func() any { return v.w.check.anyWebhook(draw) }).(string); id != "" {
				v.replay(id, 2)
			}
			continue
		}
		v.replayAll(2)
	}
	for !v.w.isCalm() {
		if !v.pause(time.Second) {
			return
		}
	}
	for range 2 { // By the second time, those of the first have been given up again.
		if !v.w.sleep(time.Minute) {
			return
		}
		v.replayAll(9)
	}
	v.look("the last replay", func() any {
		v.w.check.webhooks.done = true
		return nil
	})
}

// replayAll replays all webhooks that were given up, of one tenant or of all.
func (v *visitor) replayAll(tries int) {
	tenant := []string{"", "t1", "t2"}[v.rng.IntN(3)]
	for _, id := range v.undelivered(tenant, tries) {
		v.replay(id, tries)
	}
}

// replay replays a webhook.
func (v *visitor) replay(id string, tries int) {
	_, _ = v.retry(tries, func() (any, error) {
		return v.ask("replay "+id, nil, func(r *request) (any, error) {
			return nil, r.post("/v1/admin/webhooks/"+id+":replay", fields{}, nil)
		}, func(r *request, _ any, err error) { v.w.check.answeredReplay(r.began, id, err) })
	})
}

// undelivered reads the list of the webhooks that were given up, in small pages. It stops if a page is not answered.
func (v *visitor) undelivered(tenant string, tries int) (ids []string) {
	query := url.Values{"limit": {strconv.Itoa(1 + v.rng.IntN(4))}}
	if tenant != "" {
		query.Set("tenant_id", tenant)
	}
	began := -1
	for range maxPages {
		value, err := v.retry(tries, func() (any, error) {
			return v.ask("undelivered "+query.Encode(), nil, func(r *request) (any, error) {
				found := &webhookPage{began: r.began}
				return found, r.get("/v1/admin/webhooks?"+query.Encode(), found)
			}, func(_ *request, _ any, err error) {
				if err != nil {
					v.w.check.checkRefusal("list of webhooks", err)
				}
			})
		})
		if err != nil {
			return ids
		}
		found := value.(*webhookPage)
		for i := range found.Webhooks {
			ids = append(ids, found.Webhooks[i].ID)
		}
		if began < 0 {
			began = found.began
		}
		if found.Next == "" {
			whole := slices.Clone(ids)
			v.look("undelivered of "+tenant, func() any {
				v.w.check.answeredUndelivered(tenant, began, whole)
				return nil
			})
			return ids
		}
		query.Set("page_token", found.Next)
	}
	return ids
}
