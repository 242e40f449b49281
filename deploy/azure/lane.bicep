// One lane: its topic with a subscription for each service, its reply topic, and what
// workers may do with them.
param namespaceName string
param topicName string

@description('Empty if replies do not come by topics.')
param replyTopicName string
param replySubscription string
param services string[]
param workers { principalId: string, service: string }[]

resource bus 'Microsoft.ServiceBus/namespaces@2022-10-01-preview' existing = {
  name: namespaceName
}

// Directives. A message id names an attempt, so that the topic drops what a relay
// sends twice. Duplicate detection can only be enabled at creation.
resource topic 'Microsoft.ServiceBus/namespaces/topics@2022-10-01-preview' = {
  parent: bus
  name: topicName
  properties: {
    requiresDuplicateDetection: true
    duplicateDetectionHistoryTimeWindow: 'PT10M'
  }
}

// A topic drops messages that no subscription takes, so each service has its own.
// Parallel changes of one topic conflict.
@batchSize(1)
resource subscription 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2022-10-01-preview' = [for service in services: {
  parent: topic
  name: service
  properties: {
    lockDuration: 'PT1M'
    maxDeliveryCount: 10
    requiresSession: false
  }
}]

// The rule $Default would let every directive through; it is replaced.
@batchSize(1)
resource rule 'Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2022-10-01-preview' = [for (service, i) in services: {
  parent: subscription[i]
  name: '$Default'
  properties: {
    filterType: 'CorrelationFilter'
    correlationFilter: { properties: { service: service } }
  }
}]

resource reply 'Microsoft.ServiceBus/namespaces/topics@2022-10-01-preview' = if (!empty(replyTopicName)) {
  parent: bus
  name: empty(replyTopicName) ? 'none' : replyTopicName
  properties: {}
}

resource invoker 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2022-10-01-preview' = if (!empty(replyTopicName)) {
  parent: reply
  name: replySubscription
  properties: {
    lockDuration: 'PT1M'
    maxDeliveryCount: 10
    requiresSession: false
  }
}

// A worker receives the directives of its own service: they hold lease ids, with which
// anyone could report on the step.
var busSender = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
var busReceiver = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'

resource mayReceive 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for worker in workers: {
  name: guid(topic.id, worker.service, worker.principalId, busReceiver)
  scope: subscription[indexOf(services, worker.service)]
  properties: {
    principalId: worker.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', busReceiver)
  }
}]

// An identity may work for several services, but gets each right once.
var repliers = union(map(workers, worker => worker.principalId), [])

resource mayReply 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for principalId in repliers: if (!empty(replyTopicName)) {
  name: guid(bus.id, replyTopicName, principalId, busSender)
  scope: reply
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', busSender)
  }
}]
