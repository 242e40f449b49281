// A worker of Lucius on Azure Service Bus: it takes directives from the service's subscription
// on every lane, and answers over HTTP. docs/use/servicebus.md describes both.
using System.Globalization;
using System.Net;
using System.Net.Http.Headers;
using System.Net.Http.Json;
using System.Runtime.InteropServices;
using System.Text;
using System.Text.Json.Nodes;
using System.Text.Json.Serialization;
using Azure.Identity;
using Azure.Messaging.ServiceBus;

string Setting(string name, string otherwise = "") => Environment.GetEnvironmentVariable(name) ?? otherwise;

var service = Setting("SERVICE", "ocr");
var lanes = int.Parse(Setting("LANES", "16"), CultureInfo.InvariantCulture);
using var http = new HttpClient { BaseAddress = new Uri(Setting("LUCIUS_URL", "http://127.0.0.1:8080")) };
if (Setting("LUCIUS_TOKEN") is { Length: > 0 } token)
    http.DefaultRequestHeaders.Authorization = new AuthenticationHeaderValue("Bearer", token);

// A client recovers between two tries, so the tries are short and many.
var options = new ServiceBusClientOptions
{
    RetryOptions = { MaxRetries = 5, Delay = TimeSpan.FromMilliseconds(50), MaxDelay = TimeSpan.FromMilliseconds(500) },
};
await using var client = Setting("SERVICEBUS_CONNECTION") is { Length: > 0 } connection
    ? new ServiceBusClient(connection, options)
    : new ServiceBusClient(Setting("SERVICEBUS_NAMESPACE"), new DefaultAzureCredential(), options);

var stopped = new TaskCompletionSource();
void Stop(PosixSignalContext signal)
{
    signal.Cancel = true;
    stopped.TrySetResult();
}
using var interrupt = PosixSignalRegistration.Create(PosixSignal.SIGINT, Stop);
using var terminate = PosixSignalRegistration.Create(PosixSignal.SIGTERM, Stop);

var processors = Enumerable.Range(0, lanes).Select(lane => client.CreateProcessor($"global-bus-p{lane}", service,
    new ServiceBusProcessorOptions
    {
        AutoCompleteMessages = false,
        MaxAutoLockRenewalDuration = Timeout.InfiniteTimeSpan,
        MaxConcurrentCalls = 4,
        PrefetchCount = 0, // The lock of a message that waits here would run out.
    })).ToList();
foreach (var processor in processors)
{
    processor.ProcessMessageAsync += HandleAsync;
    processor.ProcessErrorAsync += e => Log($"{e.EntityPath}: {e.Exception.Message}");
    await processor.StartProcessingAsync();
}
await stopped.Task;
await Task.WhenAll(processors.Select(processor => processor.StopProcessingAsync()));
return;

// The work. It may see a step again, and must be idempotent: JobId and StepId name it.
async Task<JsonObject> DoAsync(Directive directive, CancellationToken stop)
{
    await Task.Delay(TimeSpan.FromSeconds(1), stop);
    return new JsonObject { ["uri"] = directive.InputRef?["uri"]?.GetValue<string>() + ".txt" };
}

// Handles one message. After an exception the processor gives the message back, and the bus
// delivers it again, at last to its dead letters.
async Task HandleAsync(ProcessMessageEventArgs args)
{
    var directive = args.Message.Body.ToObjectFromJson<Directive>();
    if (directive is not { Type: "DIRECTIVE" })
    {
        await args.DeadLetterMessageAsync(args.Message, "not_a_directive");
        return;
    }
    // The bus drops a message that is given back after it expired: another attempt begins when
    // the lease has ended, which heartbeats extend.
    var ack = Answer(directive);
    ack["lease_seconds"] = 90;
    // The answer says whether the attempt is still the current one; lease_expires_at in the past
    // is no reason to drop a directive.
    var acknowledged = await SendAsync("ack", ack, args.CancellationToken);
    if (acknowledged is not null)
        await WorkAsync(directive, acknowledged, args.CancellationToken);
    await args.CompleteMessageAsync(args.Message);
}

// Does the work under heartbeats, and sends its RESULT unless another attempt has its place.
async Task WorkAsync(Directive directive, Outcome acknowledged, CancellationToken shutdown)
{
    using var stop = CancellationTokenSource.CreateLinkedTokenSource(shutdown);
    using var ended = CancellationTokenSource.CreateLinkedTokenSource(shutdown);
    var heartbeats = HeartbeatAsync(directive, acknowledged, stop, ended.Token);
    var result = Answer(directive);
    try
    {
        result["result_ref"] = await DoAsync(directive, stop.Token);
        result["status"] = "SUCCEEDED";
    }
    catch (Exception e) when (!shutdown.IsCancellationRequested)
    {
        // FAILED_FINAL ends the job; FAILED_RETRY has the step tried again.
        result["status"] = stop.IsCancellationRequested ? "FAILED_FINAL" : "FAILED_RETRY";
        result["error"] = new JsonObject
        {
            ["code"] = stop.IsCancellationRequested ? "cancelled" : "work_failed",
            ["message"] = e.Message,
        };
    }
    finally
    {
        await ended.CancelAsync();
    }
    if (await heartbeats)
        await SendAsync("result", result, shutdown);
}

// Sends a heartbeat after each third of the lease until the work has ended. It cancels the
// work if the job is being cancelled, or if the lease is lost, and then returns false.
async Task<bool> HeartbeatAsync(Directive directive, Outcome last, CancellationTokenSource stop, CancellationToken ended)
{
    try
    {
        while (true)
        {
            var third = ((last.LeaseExpiresAt ?? DateTimeOffset.UtcNow) - DateTimeOffset.UtcNow) / 3;
            await Task.Delay(TimeSpan.FromSeconds(Math.Clamp(third.TotalSeconds, 1, 30)), ended);
            var outcome = await SendAsync("heartbeat", Answer(directive), ended);
            if (outcome is null or { CancelRequested: true })
                await stop.CancelAsync();
            if (outcome is null)
                return false;
            last = outcome;
        }
    }
    catch (OperationCanceledException)
    {
        return true;
    }
}

// What each answer has: the step, and the pair of attempt and lease that fences it.
JsonObject Answer(Directive directive)
{
    var answer = new JsonObject
    {
        ["jobId"] = directive.JobId,
        ["stepId"] = directive.StepId,
        ["tenant_id"] = directive.TenantId,
        ["attempt_no"] = directive.AttemptNo,
        ["lease_id"] = directive.LeaseId,
        ["timestamp"] = DateTimeOffset.UtcNow.ToString("yyyy-MM-dd'T'HH:mm:ss.fff'Z'", CultureInfo.InvariantCulture),
    };
    if (directive.CorrelationId is not null)
        answer["correlation_id"] = directive.CorrelationId;
    return answer;
}

// Sends an answer until Lucius has it; a repeat is always safe. It returns null if the attempt
// is no longer this worker's, and throws if the answer or the credential is wrong.
async Task<Outcome?> SendAsync(string verb, JsonObject answer, CancellationToken cancel)
{
    var body = answer.ToJsonString();
    for (var delay = TimeSpan.FromSeconds(0.5); ; delay = delay < TimeSpan.FromSeconds(16) ? 2 * delay : delay)
    {
        var wait = delay;
        try
        {
            using var content = new StringContent(body, Encoding.UTF8, "application/json");
            using var response = await http.PostAsync($"/v1/callbacks/{verb}", content, cancel);
            if (response.IsSuccessStatusCode)
                return await response.Content.ReadFromJsonAsync<Outcome>(cancel);
            var problem = $"{verb}: {(int)response.StatusCode} {await response.Content.ReadAsStringAsync(cancel)}";
            await Log(problem);
            if (response.StatusCode is HttpStatusCode.Conflict or HttpStatusCode.NotFound)
                return null;
            if ((int)response.StatusCode is not (429 or >= 500))
                throw new InvalidOperationException(problem);
            wait = response.Headers.RetryAfter?.Delta ?? delay;
        }
        catch (Exception e) when (e is HttpRequestException or IOException || (e is TaskCanceledException && !cancel.IsCancellationRequested))
        {
            await Log($"{verb}: {e.Message}");
        }
        await Task.Delay(wait, cancel);
    }
}

static Task Log(string line) => Console.Error.WriteLineAsync(line);

// The directive. Fields that are not here are ignored.
internal sealed record Directive(
    [property: JsonPropertyName("type")] string Type,
    [property: JsonPropertyName("jobId")] string JobId,
    [property: JsonPropertyName("stepId")] string StepId,
    [property: JsonPropertyName("tenant_id")] string TenantId,
    [property: JsonPropertyName("step_type")] string StepType,
    [property: JsonPropertyName("attempt_no")] int AttemptNo,
    [property: JsonPropertyName("lease_id")] string LeaseId,
    [property: JsonPropertyName("input_ref")] JsonObject? InputRef,
    [property: JsonPropertyName("output_ref")] JsonObject? OutputRef,
    [property: JsonPropertyName("payload")] JsonNode? Payload,
    [property: JsonPropertyName("correlation_id")] string? CorrelationId,
    [property: JsonPropertyName("traceparent")] string? Traceparent);

// What Lucius answers to a callback.
internal sealed record Outcome(
    [property: JsonPropertyName("outcome")] string Kind,
    [property: JsonPropertyName("lease_expires_at")] DateTimeOffset? LeaseExpiresAt,
    [property: JsonPropertyName("cancel_requested")] bool CancelRequested,
    [property: JsonPropertyName("pause_requested")] bool PauseRequested);
