// Alerts for the operators: docs/run/monitoring.md says what each means.
param location string
param prefix string
param emails string[]
param busId string
param replyTopics string[]
param tableServiceId string
param workspaceId string
param withApps bool

resource group 'Microsoft.Insights/actionGroups@2023-01-01' = {
  name: '${prefix}-operators'
  location: 'global'
  properties: {
    groupShortName: take(prefix, 12)
    enabled: true
    emailReceivers: [for (email, i) in emails: {
      name: 'operator-${i}'
      emailAddress: email
      useCommonAlertSchema: true
    }]
  }
}

var busMetrics = 'Microsoft.ServiceBus/namespaces'
var tableMetrics = 'Microsoft.Storage/storageAccounts/tableServices'

var everyTopic = [{ name: 'EntityName', operator: 'Include', values: ['*'] }]

// Without reply topics there are no dead letters of replies.
var ofReplies = empty(replyTopics) ? [] : [
  {
    name: 'replies-dead'
    description: 'Replies are dead-lettered: they cannot be read, or are about no job.'
    severity: 2
    scope: busId
    namespace: busMetrics
    metric: 'DeadletteredMessages'
    dimensions: [{ name: 'EntityName', operator: 'Include', values: replyTopics }]
    aggregation: 'Maximum'
    operator: 'GreaterThan'
    threshold: 0
  }
  {
    name: 'replies-waiting'
    description: 'Replies pile up: no replica with the role api reads them.'
    severity: 1
    scope: busId
    namespace: busMetrics
    metric: 'ActiveMessages'
    dimensions: [{ name: 'EntityName', operator: 'Include', values: replyTopics }]
    aggregation: 'Minimum'
    operator: 'GreaterThan'
    threshold: 1000
  }
]

var watched = concat(ofReplies, [
  {
    name: 'bus-throttled'
    description: 'Service Bus throttles the namespace: raise its tier or its units.'
    severity: 2
    scope: busId
    namespace: busMetrics
    metric: 'ThrottledRequests'
    dimensions: everyTopic
    aggregation: 'Total'
    operator: 'GreaterThan'
    threshold: 100
  }
  {
    name: 'bus-errors'
    description: 'Service Bus fails: jobs wait, and are dispatched when it is back.'
    severity: 1
    scope: busId
    namespace: busMetrics
    metric: 'ServerErrors'
    dimensions: everyTopic
    aggregation: 'Total'
    operator: 'GreaterThan'
    threshold: 10
  }
  {
    name: 'store-throttled'
    description: 'The storage account throttles or times out: see docs/run/scale.md.'
    severity: 2
    scope: tableServiceId
    namespace: tableMetrics
    metric: 'Transactions'
    dimensions: [
      {
        name: 'ResponseType'
        operator: 'Include'
        values: ['ServerBusyError', 'ServerTimeoutError', 'ClientThrottlingError', 'ClientAccountRequestThrottlingError']
      }
    ]
    aggregation: 'Total'
    operator: 'GreaterThan'
    threshold: 100
  }
  {
    name: 'store-away'
    description: 'The storage account fails: commands are answered with 503.'
    severity: 1
    scope: tableServiceId
    namespace: tableMetrics
    metric: 'Availability'
    dimensions: []
    aggregation: 'Average'
    operator: 'LessThan'
    threshold: 99
  }
])

resource metric 'Microsoft.Insights/metricAlerts@2018-03-01' = [for w in watched: {
  name: '${prefix}-${w.name}'
  location: 'global'
  properties: {
    description: w.description
    severity: w.severity
    enabled: true
    scopes: [w.scope]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT15M'
    autoMitigate: true
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: w.name
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: w.namespace
          metricName: w.metric
          dimensions: w.dimensions
          timeAggregation: w.aggregation
          operator: w.operator
          threshold: w.threshold
        }
      ]
    }
    actions: [{ actionGroupId: group.id }]
  }
}]

// The replicas' own words: an error in the log, or a replica that is started again and
// again.
var queries = withApps ? [
  {
    name: 'errors'
    description: 'Lucius logs errors.'
    query: 'ContainerAppConsoleLogs_CL | where ContainerAppName_s startswith "${prefix}-" | where Log_s has \'"level":"ERROR"\''
    threshold: 0
  }
  {
    name: 'restarts'
    description: 'Replicas end and are started again.'
    query: 'ContainerAppSystemLogs_CL | where ContainerAppName_s startswith "${prefix}-" | where Reason_s in ("BackOff", "ContainerTerminated", "ProbeFailed")'
    threshold: 5
  }
] : []

resource query 'Microsoft.Insights/scheduledQueryRules@2023-03-15-preview' = [for q in queries: {
  name: '${prefix}-${q.name}'
  location: location
  properties: {
    description: q.description
    severity: 2
    enabled: true
    scopes: [workspaceId]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT15M'
    autoMitigate: true
    // The log's tables exist once the first replica has written a line.
    skipQueryValidation: true
    criteria: {
      allOf: [
        {
          query: q.query
          timeAggregation: 'Count'
          operator: 'GreaterThan'
          threshold: q.threshold
          failingPeriods: { numberOfEvaluationPeriods: 1, minFailingPeriodsToAlert: 1 }
        }
      ]
    }
    actions: { actionGroups: [group.id] }
  }
}]
