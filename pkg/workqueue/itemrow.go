package workqueue

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// itemColumns are the names that encodeItem and the mark write. A rewrite
// carries all others along: they are a neighbouring version's.
var itemColumns = map[string]bool{
	"v": true, "work_id": true, "status": true, "attempt": true, "rev": true, "owner": true, "lease_expires_at": true,
	"claim_lease_ms": true, "dedupe_key": true, "message_id": true, "attempt_no": true, "lease_id": true, "job_id": true,
	"step_id": true, "tenant_id": true, "service": true, "step_type": true, "created_at": true, "updated_at": true,
	"result": true, "error_code": true, "error_message": true, "requests": true, "requeue_actor": true, "requeue_id": true,
}

// encodeItem makes the item's properties; empty ones are left out. loaded are
// those of the row that is written over.
func encodeItem(i *lifecycle.Item, loaded tablestore.Properties) tablestore.Properties {
	p := make(tablestore.Properties, 0, 22)
	str := func(name, s string) {
		if s != "" {
			p = append(p, tablestore.Property{Name: name, Value: tablestore.String(s)})
		}
	}
	num := func(name string, n int64) {
		p = append(p, tablestore.Property{Name: name, Value: tablestore.Int(n)})
	}
	at := func(name string, t time.Time) {
		if !t.IsZero() {
			p = append(p, tablestore.Property{Name: name, Value: tablestore.Time(t)})
		}
	}
	num("v", 1)
	str("work_id", i.WorkID)
	str("status", string(i.Status))
	num("attempt", int64(i.Attempt))
	num("rev", i.Rev)
	str("owner", i.Owner)
	at("lease_expires_at", i.LeaseExpiresAt)
	if i.ClaimLease != 0 {
		num("claim_lease_ms", i.ClaimLease.Milliseconds())
	}
	str("dedupe_key", i.DedupeKey)
	str("message_id", i.MessageID)
	num("attempt_no", int64(i.AttemptNo))
	str("lease_id", i.LeaseID)
	str("job_id", i.JobID)
	str("step_id", i.StepID)
	str("tenant_id", i.TenantID)
	str("service", i.Service)
	str("step_type", i.StepType)
	at("created_at", i.CreatedAt)
	at("updated_at", i.UpdatedAt)
	if len(i.Result) > 0 {
		p = append(p, tablestore.Property{Name: "result", Value: tablestore.Bytes(i.Result)})
	}
	if i.Error != nil {
		str("error_code", i.Error.Code)
		str("error_message", i.Error.Message)
	}
	p = append(p, tablestore.Property{Name: "requests", Value: tablestore.Bytes(encodeRequests(i.Requests))})
	return ledger.Carry(p, loaded, func(name string) bool { return itemColumns[name] })
}

// decodeItem reads what encodeItem wrote.
func decodeItem(p tablestore.Properties) (lifecycle.Item, error) {
	i := lifecycle.Item{
		WorkID: p.Get("work_id").String(), Status: lifecycle.Status(p.Get("status").String()),
		Attempt: int(p.Get("attempt").Int()), Rev: p.Get("rev").Int(), Owner: p.Get("owner").String(),
		LeaseExpiresAt: p.Get("lease_expires_at").Time(),
		ClaimLease:     time.Duration(p.Get("claim_lease_ms").Int()) * time.Millisecond, Result: p.Get("result").Bytes(),
		DedupeKey: p.Get("dedupe_key").String(), MessageID: p.Get("message_id").String(),
		AttemptNo: int(p.Get("attempt_no").Int()), LeaseID: p.Get("lease_id").String(),
		JobID: p.Get("job_id").String(), StepID: p.Get("step_id").String(), TenantID: p.Get("tenant_id").String(),
		Service: p.Get("service").String(), StepType: p.Get("step_type").String(),
		CreatedAt: p.Get("created_at").Time(), UpdatedAt: p.Get("updated_at").Time(),
	}
	if code := p.Get("error_code").String(); code != "" {
		i.Error = &lifecycle.Failure{Code: code, Message: p.Get("error_message").String()}
	}
	var err error
	i.Requests, err = decodeRequests(p.Get("requests").Bytes())
	return i, err
}

// request is a remembered request as it is stored.
type request struct {
	Actor     string `json:"a"`
	ID        string `json:"i"`
	Operation string `json:"o"`
	Rev       int64  `json:"r"`
	Attempt   int    `json:"n"`
	ExpiresMS int64  `json:"e"`
}

// encodeRequests writes the remembered requests; they are plain structs, which
// cannot fail to encode.
func encodeRequests(list []lifecycle.Remembered) []byte {
	out := make([]request, len(list))
	for i, r := range list {
		out[i] = request{r.Actor, r.RequestID, string(r.Operation), r.Rev, r.Attempt, r.ExpiresAt.UnixMilli()}
	}
	encoded, err := json.Marshal(out)
	if err != nil {
		return nil
	}
	return encoded
}

func decodeRequests(data []byte) ([]lifecycle.Remembered, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var in []request
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("remembered requests: %w", err)
	}
	list := make([]lifecycle.Remembered, len(in))
	for i, r := range in {
		list[i] = lifecycle.Remembered{
			Actor: r.Actor, RequestID: r.ID, Operation: lifecycle.Operation(r.Operation), Rev: r.Rev, Attempt: r.Attempt,
			ExpiresAt: time.UnixMilli(r.ExpiresMS).UTC(),
		}
	}
	return list, nil
}
